//! Snapshots of the screen at 80x24 and 120x40 with every sentence about a run.
//!
//! The tests replace times and the name of this machine, because they differ between runs.

use std::fs;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rdzv_testing::DEADLINE;

use crate::job::{Job, Running, run_python, run_shell};

const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];

/// Name of the machine, which is part of the sentences.
const NAME: &str = "node";

/// Returns the rows with placeholders for values that differ between runs.
///
/// Clocks become `M:SS`, seconds and process ids `N`, times `TIME`, and the directory `/tmp/job`.
fn stable(rows: &[String]) -> String {
    let is_number = |text: &str| {
        let digits = |character: char| character.is_ascii_digit() || character == '.';
        !text.is_empty() && text.chars().all(digits)
    };
    let stable = |before: &str, word: &str, next: &str| {
        let next = next.trim_end_matches([',', ';', '.']);
        if let Some((quote, file)) = word.split_once("/tmp/.tmp") {
            let file = file.split_once('/').map_or("", |(_, file)| file);
            return format!("{quote}/tmp/job/{file}");
        }
        if let Some((host, _)) = word.split_once("127.0.0.1_") {
            return format!("{host}127.0.0.1_N_0");
        }
        if word.contains('T') && word.ends_with("Z:") {
            return "TIME:".to_owned();
        }
        match word.split_once(':') {
            Some((minutes, seconds)) if is_number(minutes) && is_number(seconds) => {
                "M:SS".to_owned()
            }
            None if is_number(word) && matches!(next, "s" | "ms") => "N".to_owned(),
            None if before == "pid" => "N,".to_owned(),
            _ => word.to_owned(),
        }
    };
    let rows = rows.iter().map(|row| {
        let words: Vec<&str> = row.split(' ').collect();
        let at = |at: usize| words.get(at).copied().unwrap_or_default();
        let words = (0..words.len()).map(|word| {
            let before = word.checked_sub(1).map_or("", at);
            stable(before, at(word), at(word + 1))
        });
        words.collect::<Vec<_>>().join(" ")
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// Compares a screen with its snapshot.
macro_rules! golden {
    ($name:literal, $size:expr, $rows:expr) => {
        insta::assert_snapshot!(format!("{}_{}", $name, $size.0), stable(&$rows));
    };
}

fn go_on(run: &Running, ranks: std::ops::Range<u32>) {
    for rank in ranks {
        fs::write(run.path(&format!("fifo{rank}")), "go\n").unwrap();
    }
}

#[test]
fn lines_bars_and_the_state_of_a_run() {
    let script = "
touch here$RANK
until [ -e here0 -a -e here1 -a -e here2 -a -e here3 ]; do sleep 0.01; done
echo loaded the data set
if [ $RANK = 2 ]; then sleep 0.3; echo 'a warning of one'; fi
mkfifo fifo$RANK
printf '\\r  0%%|          |\\r 45%%|####      | shard %s' $((RANK / 2)) >&2
read go < fifo$RANK
printf '\\r100%%|##########| shard %s\\n' $((RANK / 2)) >&2";
    for size in SIZES {
        let run = run_shell("--nproc-per-node 4", script).start_on(size.0, size.1);
        let screen = run.wait_for("two lines, two bars and the state", |screen| {
            screen.len() == 5 && screen[4].starts_with("running")
        });
        golden!("running", size, screen);
        // A finished bar stays at its place, so the shards finish in a fixed order.
        go_on(&run, 0..2);
        run.wait_for("the first bar at its end", |screen| {
            screen.iter().any(|row| row.starts_with("[0-1] 100%"))
        });
        go_on(&run, 2..4);
        golden!("success", size, run.lines_of_success());
    }
}

/// Script in which rank 1 fails in the first attempts, with different causes.
const FAILING: &str = "
import os, sys, time
attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])
causes = [ValueError('bad config: no key lr in run.yaml'), MemoryError(), KeyError('apex-extensions')]
if os.environ['RANK'] == '1' and attempt < int(sys.argv[1]):
    raise causes[attempt]
if attempt < int(sys.argv[1]):
    time.sleep(600)
";

fn failing(most: &str, attempts: &str, size: (u16, u16)) -> Option<Running> {
    let flags = ["--nproc-per-node", "2", "--max-restarts", most];
    let job = run_python(&flags, FAILING).args([attempts]);
    Some(job.on_machine(NAME)?.start_on(size.0, size.1))
}

#[test]
fn restarts_and_the_success_after_them() {
    for size in SIZES {
        let Some(run) = failing("3", "2", size) else {
            return;
        };
        golden!("restarts", size, run.lines_of_success());
    }
}

#[test]
fn the_attempts_before_a_failure() {
    for size in SIZES {
        let Some(mut run) = failing("2", "9", size) else {
            return;
        };
        let status = run.wait();
        golden!("attempts", size, run.screen());
        assert_eq!(run.end_after(status).0, Some(1));
    }
}

#[test]
fn ctrl_c_once_twice_and_thrice() {
    let stubborn = "trap '' INT TERM; touch on$RANK; while :; do sleep 1000 & wait; done";
    for size in SIZES {
        let flags = "--nproc-per-node 3 --shutdown-timeout 59";
        let run = run_shell(flags, stubborn).start_on(size.0, size.1);
        for rank in ["on0", "on1", "on2"] {
            run.wait_for_file(rank);
        }
        run.wait_for_text("running \u{b7} 3 workers");
        run.press(b"\x03");
        // The text must appear twice: in a line and in the status row below it.
        let says = |screen: &[String], what: &str| {
            let text = screen.join(" ");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            words.matches(what).count() == 2
        };
        let screen = run.wait_for("the first", |screen| {
            says(screen, "to exit; a second Ctrl-C") || says(screen, "Ctrl-C: ranks 0-2 have")
        });
        golden!("ctrl_c_once", size, screen);
        // An immediate repetition of a signal is not another request.
        std::thread::sleep(Duration::from_millis(250));
        run.press(b"\x03");
        let screen = run.wait_for("the second", |screen| says(screen, "left to exit"));
        golden!("ctrl_c_twice", size, screen);
        std::thread::sleep(Duration::from_millis(250));
        run.press(b"\x03");
        let (code, lines) = run.end();
        assert_ne!(code, Some(0));
        golden!("ctrl_c_thrice", size, lines);
    }
}

fn node(endpoint: &str, nodes: &str, script: &str) -> Job {
    // With `--agent-restarts 0`, a killed node is lost immediately.
    let flags = format!(
        "--nnodes {nodes} --nproc-per-node 1 --agent-restarts 0 --rdzv-backend c10d --rdzv-id job \
         --rdzv-conf last_call_timeout=600 --rdzv-endpoint {endpoint} --local-addr 127.0.0.1"
    );
    run_shell(&*flags, script)
}

#[test]
fn a_wait_for_nodes() {
    for size in SIZES {
        let endpoint = format!("127.0.0.1:{}", rdzv_testing::free_port());
        let run = node(&endpoint, "3", "exit").start_on(size.0, size.1);
        let screen = run.wait_for("who is awaited", |screen| {
            screen
                .last()
                .is_some_and(|row| row.starts_with("waiting for nodes: 1 of 3"))
        });
        golden!("waiting", size, screen);
        run.press(b"\x03");
        run.end();
    }
}

#[test]
fn nodes_that_go_and_come() {
    let script = "echo $WORLD_SIZE workers; mkdir r$RDZV_ROUND; mkfifo r$RDZV_ROUND/fifo; touch r$RDZV_ROUND/on; \
        read go < r$RDZV_ROUND/fifo";
    for size in SIZES {
        let endpoint = format!("127.0.0.1:{}", rdzv_testing::free_port());
        let start = || {
            let job = node(&endpoint, "1:2", script).on_machine(NAME)?;
            Some(job.start_on(size.0, size.1))
        };
        let Some(first) = start() else {
            return;
        };
        // The first node hosts the store, so the other nodes start later.
        let deadline = Instant::now() + DEADLINE;
        while TcpStream::connect(&endpoint).is_err() {
            assert!(Instant::now() < deadline, "{:?}", first.screen());
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let second = start().unwrap();
        first.wait_for_file("r0/on");
        second.wait_for_file("r0/on");
        // The view delays a line briefly, to collapse it with equal lines of other workers.
        first.wait_for_text("[node 0] 2 workers");
        second.kill();
        first.wait_for_file("r1/on");
        first.wait_for_text("[0] 1 workers");
        let third = start().unwrap();
        first.wait_for_file("r2/on");
        third.wait_for_file("r2/on");
        let screen = first.wait_for("the round of two", |screen| {
            let row = "running \u{b7} 2 workers on 2 nodes";
            screen.last().is_some_and(|last| last.starts_with(row))
                && screen.join("\n").matches("[node 0] 2 workers").count() == 2
        });
        golden!("nodes_go_and_come", size, screen);
        for run in [&first, &third] {
            fs::write(run.path("r2/fifo"), "go\n").unwrap();
        }
        golden!("changes_of_nodes", size, first.lines_of_success());
        third.lines_of_success();
    }
}
