//! Tests of workers that write faster than the terminal reads.

use crate::job::{has, run_shell};

const BEGIN_UPDATE: &str = "\u{1b}[?2026h";
const END_UPDATE: &str = "\u{1b}[?2026l";

/// Returns text that was written outside an update of the terminal, if any.
fn is_outside_of_updates(raw: &str) -> Option<&str> {
    let (_, from_first) = raw.split_once(BEGIN_UPDATE)?;
    let (until_last, _) = from_first.rsplit_once(END_UPDATE)?;
    until_last
        .split(BEGIN_UPDATE)
        .filter_map(|update| Some(update.split_once(END_UPDATE)?.1))
        .find(|outside| !outside.is_empty())
}

#[test]
fn a_flood_of_two_workers_arrives_whole_and_in_order_above_the_row() {
    let script = "
stdbuf -oL seq -f \"line %.0f of $RANK\" 1 50000
mkfifo fifo$RANK; touch on$RANK; read go < fifo$RANK";
    let run = run_shell("--nproc-per-node 2", script).start();
    run.wait_for_file("on0");
    run.wait_for_file("on1");
    run.wait_for("the state below the last lines", |screen| {
        has(screen, "[0] line 50000 of 0") || has(screen, "[1] line 50000 of 1")
    });
    run.wait_for("the row", |screen| {
        screen
            .last()
            .is_some_and(|row| row.starts_with("running \u{b7} 2 workers"))
    });
    for rank in ["fifo0", "fifo1"] {
        std::fs::write(run.path(rank), "go\n").unwrap();
    }
    let raw = run.raw();
    let mut run = run;
    assert!(run.wait().success());
    let raw_of_all = String::from_utf8(run.raw()).unwrap();
    assert!(raw_of_all.len() >= raw.len());
    let mut next = [1, 1];
    let mut shown_before = [None, None];
    for line in raw_of_all.split("\r\n") {
        let Some((_, line)) = line.split_once("line ") else {
            continue;
        };
        // A full terminal accepts only a part of a line. The whole line or its rest follows.
        let (line, is_part) = match line.strip_suffix("\u{1b}[K\r") {
            Some(part) => (part, true),
            None => (line, false),
        };
        let expected = [0, 1].map(|rank| format!("{} of {rank}", next[rank]));
        if let Some(rank) = expected.iter().position(|whole| whole == line) {
            next[rank] += 1;
            shown_before[rank] = is_part.then_some(line);
        } else if !shown_before.contains(&Some(line)) {
            let is_begun = expected.iter().any(|whole| whole.starts_with(line));
            assert!(is_part && is_begun, "{line:?} in place of {expected:?}");
        }
    }
    assert_eq!(next, [50_001, 50_001]);
    assert_eq!(is_outside_of_updates(&raw_of_all), None);
}
