//! Workers that write more than anybody reads.

use crate::job::{has, run_shell};

const BEGIN_UPDATE: &str = "\u{1b}[?2026h";
const END_UPDATE: &str = "\u{1b}[?2026l";

/// Whether something is on the terminal between two updates of it: then rows come and go while people look.
fn is_outside_of_updates(raw: &str) -> Option<&str> {
    let (_, from_first) = raw.split_once(BEGIN_UPDATE)?;
    let (until_last, _) = from_first.rsplit_once(END_UPDATE)?;
    until_last
        .split(BEGIN_UPDATE)
        .filter_map(|update| Some(update.split_once(END_UPDATE)?.1))
        .find(|outside| !outside.is_empty())
}

/// Rank and text of a row with output of a worker.
fn piece(row: &str) -> Option<(usize, &str)> {
    let (rank, at) = (0..2).find_map(|rank| Some((rank, row.rfind(&format!("[{rank}] "))?)))?;
    let text = &row[at + "[0] ".len()..];
    Some((rank, text.split('\u{1b}').next().unwrap_or(text)))
}

#[test]
fn a_flood_of_two_workers_arrives_whole_and_in_order_above_the_row() {
    let script = "
seq -f \"line %.0f of $RANK\" 1 50000
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
    let mut begun = [String::new(), String::new()];
    for (rank, piece) in raw_of_all.split("\r\n").filter_map(piece) {
        // On a busy machine, a line is shown in pieces if its worker pauses within it.
        begun[rank].push_str(piece);
        let line = begun[rank].strip_prefix("line ");
        let number = line.and_then(|line| line.strip_suffix(&format!(" of {rank}")));
        if let Some(number) = number {
            assert_eq!(number.parse(), Ok(next[rank]), "{:?}", begun[rank]);
            next[rank] += 1;
            begun[rank].clear();
        }
    }
    assert_eq!(begun, [String::new(), String::new()], "a part of a line");
    assert_eq!(next, [50_001, 50_001]);
    assert_eq!(is_outside_of_updates(&raw_of_all), None);
}
