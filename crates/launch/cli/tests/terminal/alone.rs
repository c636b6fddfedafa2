//! Tests of a single worker: it uses the terminal, and rdzv relays its stderr.

use std::fs;

use rdzv_testing::pids;

use crate::job::{has, run_python, shell};

const ONE: &[&str] = &["--nproc-per-node", "1"];

#[test]
fn the_verdict_of_the_only_worker_has_the_cause() {
    let script =
        "import sys\nprint('begins', file=sys.stderr)\nraise ValueError('no such shard')\n";
    for (flags, is_known) in [
        (ONE, true),
        (&["--nproc-per-node", "1", "--bare-stderr"], false),
        (&["--nproc-per-node", "1", "--compat-output"], false),
    ] {
        let (code, lines) = run_python(flags, script).start_on(120, 40).end();
        assert_eq!(code, Some(1));
        let text = lines.join("\n");
        // The line appears unchanged and once.
        assert_eq!(
            lines.iter().filter(|line| *line == "begins").count(),
            1,
            "{text}"
        );
        assert!(has(&lines, "ValueError: no such shard"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let verdict = words
            .rsplit_once("first failure")
            .map_or("", |(_, verdict)| verdict);
        assert_eq!(
            verdict.contains("ValueError: no such shard"),
            is_known,
            "{flags:?}: {text}"
        );
    }
}

#[test]
fn a_debugger_of_the_only_worker_works() {
    let script = "
import sys
def shard(number):
    breakpoint()
    return number
print('got', shard(41), sys.stderr.isatty(), file=sys.stderr)
";
    let run = run_python(ONE, script).start();
    run.wait_for_text("(Pdb)");
    run.press(b"p number + 1\r");
    run.wait_for_text("42");
    run.press(b"c\r");
    let lines = run.lines_of_success();
    assert!(has(&lines, "got 41 True"), "{lines:?}");
}

#[test]
fn the_only_worker_is_suspended_and_goes_on() {
    let run = shell(&["--norc", "-i"]).env("PS1", "prompt> ").start();
    run.wait_for_text("prompt>");
    // In an argument of a worker, `$$` means `$`.
    run.press(b"$RDZV run --nproc-per-node 1 --no-python sh -c 'echo $$$$ > pid; touch on; read name; echo hi $name >&2'\r");
    run.wait_for_file("on");
    let worker = fs::read_to_string(run.path("pid")).unwrap();
    let worker = worker.trim().parse().unwrap();
    run.press(b"\x1a");
    run.wait_for_text("Stopped");
    // The worker stops shortly after the launcher, and would read keys that arrive before it stops.
    run.wait_for_text("rdzv: stopped;");
    pids::wait_for_state(worker, 'T');
    run.press(b"echo the shell is $((40 + 2))\r");
    run.wait_for_text("the shell is 42");
    run.press(b"fg\r");
    // The shell would read keys that arrive before the worker continues.
    run.wait_for_text("rdzv: continued");
    run.press(b"you\r");
    run.wait_for("the end", |screen| {
        has(screen, "hi you") && screen.last().is_some_and(|row| row.starts_with("prompt>"))
    });
    run.press(b"exit\r");
    run.lines_of_success();
}

#[test]
fn the_only_worker_learns_that_the_terminal_has_another_size() {
    let script = "
import os, signal, sys
def tell(word):
    # Not `print`: the signal may interrupt it within a line.
    sizes = (str(tuple(os.get_terminal_size(stream))) for stream in (1, 2))
    os.write(1, (' '.join([word, *sizes]) + '\\n').encode())
def resized(signal, frame):
    tell('now')
    sys.exit()
signal.signal(signal.SIGWINCH, resized)
tell('size')
while True: signal.pause()
";
    let run = run_python(ONE, script).start();
    run.wait_for_text("size (80, 24) (80, 24)");
    run.resize(60, 20);
    let lines = run.lines_of_success();
    assert!(has(&lines, "now (60, 20) (60, 20)"), "{lines:?}");
}

#[test]
fn a_bar_of_the_only_worker_stays_in_its_row() {
    let script = "
import sys
for percent in range(0, 101, 10):
    print(f'\\r{percent:3}%|bar|', end='', file=sys.stderr)
print(file=sys.stderr)
print('\\x1b[31mred\\x1b[0m', file=sys.stderr)
";
    let mut run = run_python(ONE, script).start();
    assert!(run.wait().success());
    let lines = run.lines();
    assert_eq!(
        lines.iter().filter(|line| line.contains("|bar|")).count(),
        1,
        "{lines:?}"
    );
    let raw = String::from_utf8(run.raw()).unwrap();
    assert!(
        raw.contains("\r 10%|bar|\r 20%|bar|") && raw.contains("\u{1b}[31mred"),
        "{raw:?}"
    );
}
