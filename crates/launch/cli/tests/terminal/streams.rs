//! Tests of the workers' streams: pseudo-terminals, pipes or the real terminal.

use std::fs;

use rdzv_testing::pids;
use rustix::process::Signal;

use crate::job::{has, run_python, run_shell, shell};

const KIND: &str = "test -t 1 && test -t 2 && echo tty $RANK $(stty size <&2) || echo pipe $RANK";

#[test]
fn workers_write_to_terminals_as_wide_as_their_rows() {
    let lines = run_shell("--nproc-per-node 2", KIND)
        .start()
        .lines_of_success();
    // The width is 80 columns without the label, its space and the last column.
    assert!(
        has(&lines, "[0] tty 0 24 75") && has(&lines, "[1] tty 1 24 75"),
        "{lines:?}"
    );
    let run = run_shell("--nproc-per-node 2", KIND).start_on(120, 40);
    let lines = run.lines_of_success();
    assert!(has(&lines, "[0] tty 0 40 115"), "{lines:?}");
}

#[test]
fn no_pty_gives_pipes_with_the_same_lines() {
    let run = run_shell("--nproc-per-node 2 --no-pty", KIND).start();
    let lines = run.lines_of_success();
    assert!(
        has(&lines, "[0] pipe 0") && has(&lines, "[1] pipe 1"),
        "{lines:?}"
    );
}

#[test]
fn the_only_worker_has_the_terminal_itself() {
    let run = run_shell(
        "--nproc-per-node 1",
        &format!("{KIND}; read name; echo hi $name"),
    )
    .start();
    run.wait_for_text("tty 0 24 80");
    run.press(b"you\r");
    let lines = run.lines_of_success();
    assert!(has(&lines, "hi you"), "{lines:?}");
}

#[test]
fn the_link_named_torchrun_leaves_the_terminal_to_the_workers() {
    let run = shell(&[
        "-c",
        "ln -s $RDZV torchrun; ./torchrun --nproc-per-node 2 --no-python sh -c \"$KIND\"",
    ])
    .env("KIND", KIND)
    .start();
    let lines = run.lines_of_success();
    assert!(
        has(&lines, "tty 0 24 80") && has(&lines, "tty 1 24 80"),
        "{lines:?}"
    );
}

#[test]
fn a_reader_that_is_no_terminal_gets_the_bytes_of_the_workers() {
    let run = shell(&[
        "-c",
        "$RDZV run --nproc-per-node 2 --no-python sh -c \"$KIND\" | cat",
    ])
    .env("KIND", KIND)
    .start();
    let lines = run.lines_of_success();
    assert!(has(&lines, "pipe 0") && has(&lines, "pipe 1"), "{lines:?}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_no_run() {
    let script =
        "$RDZV run --nproc-per-node 2 --no-python sh -c 'seq 100000; touch $RANK' | head -n 1; ls";
    let lines = shell(&["-c", script]).start().lines_of_success();
    assert!(has(&lines, "1"), "{lines:?}");
}

#[test]
fn a_run_under_nohup_outlives_its_terminal() {
    let script = "
nohup $RDZV run --nproc-per-node 2 --no-python sh -c \
    'echo line $RANK; touch on$RANK; until [ -e go ]; do sleep 0.01; done' > out 2>&1 &
until [ -e on0 -a -e on1 ]; do sleep 0.01; done
kill -HUP $!; touch go; wait $!; echo ended $?; cat out";
    let lines = shell(&["-c", script]).start().lines_of_success();
    assert!(has(&lines, "ended 0") && has(&lines, "line 1"), "{lines:?}");
}

const FLOOD: &str = "if [ $RANK = 0 ]; then seq 300000; touch written; read forever < fifo; fi";

#[test]
fn workers_go_on_while_the_agent_stands_still() {
    let run = run_shell(
        "--nproc-per-node 2",
        &format!("mkfifo fifo$RANK; touch begun$RANK; read go < fifo$RANK; mkfifo fifo; {FLOOD}"),
    )
    .start();
    run.wait_for_file("begun0");
    run.wait_for_file("begun1");
    let agent = pids::agent(run.pid()).unwrap();
    pids::kill(agent, Signal::STOP);
    for rank in ["fifo0", "fifo1"] {
        fs::write(run.path(rank), "go\n").unwrap();
    }
    run.wait_for_file("written");
    pids::kill(agent, Signal::CONT);
    run.wait_for_text("[0] 300000");
    fs::write(run.path("fifo"), "go\n").unwrap();
    let lines = run.lines_of_success();
    let noted = lines
        .iter()
        .filter(|line| line.contains("bytes were dropped here"))
        .count();
    assert!(noted >= 1, "{:?}", &lines[lines.len() - 5..]);
}

#[test]
fn workers_go_on_while_nobody_takes_what_they_write() {
    let script = format!("[ $RANK = 1 ] || mkfifo fifo; {FLOOD}");
    let run = run_shell("--nproc-per-node 2", &script).start();
    // Ctrl-S stops the terminal, and Ctrl-Q resumes it.
    run.press(b"\x13");
    run.wait_for_file("written");
    run.press(b"\x11");
    run.wait_for_text("[0] 300000");
    fs::write(run.path("fifo"), "go\n").unwrap();
    run.lines_of_success();
}

#[test]
fn workers_go_on_without_the_relay() {
    let script = "echo one $RANK; mkfifo fifo$RANK; read go < fifo$RANK; echo two $RANK";
    let run = run_shell("--nproc-per-node 2", script).start();
    run.wait_for_text("[1] one 1");
    pids::kill(run.process("rdzv-output"), Signal::KILL);
    for rank in ["fifo0", "fifo1"] {
        fs::write(run.path(rank), "go\n").unwrap();
    }
    let lines = run.lines_of_success();
    assert!(
        has(&lines, "[0] two 0") && has(&lines, "[1] two 1"),
        "{lines:?}"
    );
}

#[test]
fn nothing_is_left_when_the_agent_is_killed() {
    let run = run_shell("--nproc-per-node 2", "echo on $RANK; sleep 1000").start();
    run.wait_for_text("[0] on 0");
    pids::kill(pids::agent(run.pid()).unwrap(), Signal::KILL);
    let (code, lines) = run.end();
    assert_ne!(code, Some(0), "{lines:?}");
}

#[test]
fn the_cause_of_a_failure_is_known_on_a_terminal() {
    let script = "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no such shard')\nimport time\ntime.sleep(1000)\n";
    for flags in [
        &["--nproc-per-node", "2"][..],
        &["--nproc-per-node", "2", "--no-pty"],
    ] {
        let (code, lines) = run_python(flags, script).start_on(120, 40).end();
        assert_eq!(code, Some(1));
        let text = lines.join("\n");
        assert!(text.contains("[1] ValueError: no such shard"), "{text}");
        let verdict = lines
            .iter()
            .position(|line| line.contains("first failure") && line.contains("rank 1"));
        let verdict = lines[verdict.expect(&text)..].join(" ");
        let verdict = verdict.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(verdict.contains("ValueError: no such shard"), "{text}");
    }
}
