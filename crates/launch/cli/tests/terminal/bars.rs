//! Tests of progress bars and the status row.

use std::fs;

use crate::job::{has, run_shell};

/// Script that writes a bar to stderr, as tqdm does.
///
/// After 10 %, the script waits for a line in `fifo⟨rank⟩`.
const BAR: &str = r#"
mkfifo fifo$RANK
step() { printf '\r%3d%%|bar of %s|' $1 $RANK >&2; }
for percent in 1 2 3 4 5 6 7 8 9 10; do step $percent; done
touch half$RANK
read go < fifo$RANK
for percent in 91 92 93 94 95 96 97 98 99 100; do step $percent; done
printf '\n' >&2
"#;

fn go_on(run: &crate::job::Running, ranks: u32) {
    for rank in 0..ranks {
        fs::write(run.path(&format!("fifo{rank}")), "go\n").unwrap();
    }
}

#[test]
fn the_bar_of_each_of_four_workers_takes_one_row() {
    for (columns, rows) in [(80, 24), (120, 40)] {
        let run = run_shell("--nproc-per-node 4", BAR).start_on(columns, rows);
        let screen = run.wait_for("four bars and a status row", |screen| {
            screen.len() == 5 && screen[3].contains(" 10%") && screen[4].starts_with("running")
        });
        for (rank, row) in screen[..4].iter().enumerate() {
            assert_eq!(*row, format!("[{rank}]  10%|bar of {rank}|"));
        }
        assert!(
            screen[4].starts_with("running \u{b7} 4 workers \u{b7} 0:"),
            "{screen:?}"
        );
        go_on(&run, 4);
        let lines = run.lines_of_success();
        let mut bars: Vec<&String> = lines
            .iter()
            .filter(|line| line.contains("bar of"))
            .collect();
        bars.sort();
        assert_eq!(
            bars,
            [
                "[0] 100%|bar of 0|",
                "[1] 100%|bar of 1|",
                "[2] 100%|bar of 2|",
                "[3] 100%|bar of 3|"
            ]
        );
    }
}

#[test]
fn many_bars_are_folded() {
    let run = run_shell("--nproc-per-node 12", BAR).start();
    let screen = run.wait_for("some bars", |screen| {
        screen.iter().any(|row| row == "(5 more)")
    });
    assert_eq!(screen.len(), 9, "{screen:?}");
    go_on(&run, 12);
    run.lines_of_success();
}

#[test]
fn lines_go_above_the_bars() {
    let script = format!("{BAR}\necho epoch $RANK is over");
    let script = script.replace("touch half$RANK", "echo half of $RANK; touch half$RANK");
    let run = run_shell("--nproc-per-node 2", &script).start();
    let screen = run.wait_for("two lines, two bars and a status row", |screen| {
        screen.len() == 5 && screen[3].contains("10%|bar of 1|") && has(screen, "[1] half of 1")
    });
    assert!(
        screen[2].contains("10%|bar of 0|") && screen[4].starts_with("running"),
        "{screen:?}"
    );
    go_on(&run, 2);
    let lines = run.lines_of_success();
    assert!(has(&lines, "[0] epoch 0 is over"), "{lines:?}");
    assert!(!lines.join("\n").contains("running"), "{lines:?}");
}

#[test]
fn the_rows_of_a_terminal_that_gets_another_size_follow_it() {
    // The trap interrupts `read`, so it is repeated.
    let waiting = "exec 3<> fifo$RANK; until read go <&3; do :; done";
    let script = format!("trap 'echo now $(stty size <&2)' WINCH\n{BAR}")
        .replace("read go < fifo$RANK", waiting);
    let run = run_shell("--nproc-per-node 2", &script).start();
    run.wait_for("bars", |screen| {
        screen.iter().any(|row| row.contains("10%|bar of 1|"))
    });
    run.resize(60, 20);
    run.wait_for_text("now 20 55");
    run.wait_for("a status row", |screen| {
        screen.last().is_some_and(|row| row.starts_with("running"))
    });
    go_on(&run, 2);
    run.lines_of_success();
}
