//! Tests of `rdzv demo`: its output, and its exit after an interruption.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

/// Returns a command for the demo with the default action of SIGINT.
///
/// A shell may start these tests in the background with SIGINT ignored, and children inherit that.
fn demo(arguments: &[&str], temporary: &Path) -> Command {
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_rdzv"), "demo"])
        .args(arguments)
        .env("TMPDIR", temporary);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the demo to completion, and asserts that no process or file is left.
fn run(arguments: &[&str]) -> (Output, String) {
    let temporary = TempDir::new().unwrap();
    let output = demo(arguments, temporary.path()).output().unwrap();
    let printed = text(&output.stdout);
    assert_nothing_left(&printed, temporary.path());
    (output, printed)
}

fn assert_nothing_left(printed: &str, temporary: &Path) {
    let left: Vec<_> = fs::read_dir(temporary).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    for pid in processes(printed) {
        assert!(
            test_kill_process(pid).is_err(),
            "{pid:?} is alive\n{printed}"
        );
    }
}

/// Returns the workers that the timeline names.
fn processes(printed: &str) -> Vec<Pid> {
    printed
        .lines()
        .filter_map(|line| line.split_once(" as processes "))
        .flat_map(|(_, pids)| pids.split(", "))
        .map(|pid| Pid::from_raw(pid.trim().parse().unwrap()).unwrap())
        .collect()
}

fn final_loss(printed: &str) -> f32 {
    let (_, rest) = printed.split_once("The final loss is ").expect(printed);
    rest.split_once(';').unwrap().0.parse().unwrap()
}

#[test]
fn a_killed_worker_changes_the_story_but_not_one_bit_of_the_result() {
    let (with, story) = run(&[]);
    assert!(with.status.success(), "{story}{}", text(&with.stderr));
    assert_eq!(text(&with.stderr), "");
    let parts = [
        "KILL      rank 3, process ",
        "died      rank 3 by SIGKILL",
        "restart   1 of 1",
        "resumed   from the checkpoint of step ",
        "done      120  loss ",
        "What you saw",
        "What to type next",
    ];
    let mut rest = story.as_str();
    for part in parts {
        (_, rest) = rest
            .split_once(part)
            .unwrap_or_else(|| panic!("{part:?} in\n{story}"));
    }
    assert_eq!(processes(&story).len(), 8, "{story}");

    let (without, quiet_story) = run(&["--no-kill"]);
    assert!(
        without.status.success(),
        "{quiet_story}{}",
        text(&without.stderr)
    );
    assert!(!quiet_story.contains("KILL"), "{quiet_story}");
    assert_eq!(processes(&quiet_story).len(), 4, "{quiet_story}");
    assert_eq!(
        final_loss(&story).to_bits(),
        final_loss(&quiet_story).to_bits()
    );
}

#[test]
fn one_worker_alone_is_killed_and_goes_on() {
    let (output, story) = run(&["--workers", "1"]);
    assert!(output.status.success(), "{story}{}", text(&output.stderr));
    assert!(story.contains("died      rank 0 by SIGKILL"), "{story}");
}

/// Starts the demo, waits for the join of the workers, and returns its output.
fn start(temporary: &Path) -> (Child, String, BufReader<impl Read + use<>>) {
    let mut command = demo(&["--no-kill"], temporary);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut story = String::new();
    while !story.contains(" met ") {
        assert_ne!(lines.read_line(&mut story).unwrap(), 0, "{story}");
    }
    (child, story, lines)
}

#[test]
fn an_interrupt_ends_it_and_cleans_up() {
    let temporary = TempDir::new().unwrap();
    let (mut child, mut story, mut lines) = start(temporary.path());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    lines.read_to_string(&mut story).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{story}");
    let mut complaint = String::new();
    child
        .stderr
        .unwrap()
        .read_to_string(&mut complaint)
        .unwrap();
    assert!(complaint.contains("stopped by signal 2"), "{complaint}");
    assert_nothing_left(&story, temporary.path());
}

#[test]
fn a_reader_that_leaves_does_not_stop_it() {
    let temporary = TempDir::new().unwrap();
    let (child, story, lines) = start(temporary.path());
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_nothing_left(&story, temporary.path());
}

#[test]
fn a_failure_of_the_demo_itself_is_shown_with_what_the_workers_said() {
    let temporary = TempDir::new().unwrap();
    let (child, story, lines) = start(temporary.path());
    // The test kills a worker in both attempts, which the demo does not expect.
    let mut lines = lines;
    let mut story = story;
    for attempt in 0..2 {
        let victim = processes(&story)[4 * attempt + 1];
        kill_process(victim, Signal::KILL).unwrap();
        while attempt == 0 && !story.contains("repeating") {
            assert_ne!(lines.read_line(&mut story).unwrap(), 0, "{story}");
        }
    }
    lines.read_to_string(&mut story).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{story}");
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains("The demo did not run as expected: the workers failed"),
        "{complaint}"
    );
    assert!(complaint.contains("ended by SIGKILL"), "{complaint}");
    assert_nothing_left(&story, temporary.path());
}
