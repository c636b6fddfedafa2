//! Tests of Ctrl-C and Ctrl-Z.

use std::fs;

use crate::job::{has, run_shell, shell};

const STUBBORN: &str = "trap 'echo asked $RANK' INT TERM; echo on $RANK; touch on$RANK; while :; do sleep 1000 & wait; done";

#[test]
fn ctrl_c_says_who_is_awaited_and_what_the_next_one_does() {
    let run = run_shell("--nproc-per-node 2 --shutdown-timeout 1000", STUBBORN).start_on(120, 40);
    run.wait_for_file("on0");
    run.wait_for_file("on1");
    run.press(b"\x03");
    run.wait_for("who is awaited, in the status row", |screen| {
        let row = screen.last().map_or("", String::as_str);
        row.starts_with("Ctrl-C: ranks 0-1 have ") && row.contains("a second Ctrl-C leaves")
    });
    run.wait_for("both to be asked", |screen| {
        has(screen, "[0-1] asked 0") || has(screen, "[0] asked 0") && has(screen, "[1] asked 1")
    });
    // An immediate repetition of a signal is not another request.
    std::thread::sleep(std::time::Duration::from_millis(250));
    run.press(b"\x03");
    run.wait_for_text("one more Ctrl-C kills them");
    std::thread::sleep(std::time::Duration::from_millis(250));
    run.press(b"\x03");
    let (code, lines) = run.end();
    assert_ne!(code, Some(0), "{lines:?}");
}

#[test]
fn ctrl_c_ends_workers_that_do_not_mind() {
    let run = run_shell(
        "--nproc-per-node 2",
        "echo on $RANK; touch on$RANK; sleep 1000",
    )
    .start();
    run.wait_for_file("on0");
    run.wait_for_file("on1");
    run.press(b"\x03");
    let (code, lines) = run.end();
    assert_ne!(code, Some(0), "{lines:?}");
    assert!(!lines.join("\n").contains("running"), "{lines:?}");
}

#[test]
fn a_job_is_suspended_and_goes_on() {
    let run = shell(&["--norc", "-i"]).env("PS1", "prompt> ").start();
    run.wait_for_text("prompt>");
    run.press(b"$RDZV run --nproc-per-node 2 --no-python sh -c 'mkfifo fifo$RANK; echo on $RANK; touch on$RANK; read go < fifo$RANK; echo two $RANK'\r");
    run.wait_for_file("on0");
    run.wait_for_file("on1");
    run.wait_for_text("running");
    run.press(b"\x1a");
    run.wait_for_text("Stopped");
    run.press(b"echo the shell is $((40 + 2))\r");
    let screen = run.wait_for_text("the shell is 42");
    let shell = screen
        .iter()
        .rposition(|row| row.contains("the shell is 42"));
    let drawn = screen[shell.unwrap()..]
        .iter()
        .any(|row| row.starts_with("running"));
    assert!(!drawn, "over the shell: {screen:?}");
    run.press(b"fg\r");
    run.wait_for("the status row again", |screen| {
        screen.last().is_some_and(|row| row.starts_with("running"))
    });
    for rank in ["fifo0", "fifo1"] {
        fs::write(run.path(rank), "go\n").unwrap();
    }
    run.wait_for("the end", |screen| {
        has(screen, "[0] two 0") && screen.last().is_some_and(|row| row.starts_with("prompt>"))
    });
    run.press(b"exit\r");
    let lines = run.lines_of_success();
    assert!(has(&lines, "[1] two 1"), "{lines:?}");
}
