//! Tests of the RPC examples under `rdzv run`.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::process::Command;

/// Runs an example, and returns the lines of its workers in alphabetical order.
fn run(example: &str, workers: u32) -> Vec<String> {
    let rdzv = env!("CARGO_BIN_EXE_rdzv");
    let worker = rdzv_testing::example("rdzv-rpc", example);
    let output = Command::new(rdzv)
        .args(["run", "--standalone", "--no-python", "--nproc-per-node"])
        .arg(workers.to_string())
        .arg(worker)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = String::from_utf8(output.stdout).unwrap();
    let mut said: Vec<String> = said.lines().map(str::to_owned).collect();
    said.sort_unstable();
    said
}

#[test]
fn trainers_fit_a_line_with_a_parameter_server() {
    let expected = [
        "server: 100 steps of 3 trainers",
        "trainer-1: slope 3.000, height -2.000",
        "trainer-2: slope 3.000, height -2.000",
        "trainer-3: slope 3.000, height -2.000",
    ];
    assert_eq!(run("parameter_server", 4), expected);
}

#[test]
fn micro_batches_go_through_a_pipeline_of_two_workers() {
    let expected = "8 micro-batches through 2 stages: 1024 numbers, their sum is -59578.5";
    assert_eq!(run("pipeline", 2), [expected]);
}

#[test]
fn a_worker_joins_late_and_is_killed_and_the_others_go_on() {
    let expected = [
        "late has joined: 7 * 7 = 49",
        "late was killed: PeerLost of late",
        "worker-1 is still there: 8 * 8 = 64",
        "worker-1 is there: 6 * 6 = 36",
    ];
    assert_eq!(run("dynamic_group", 2), expected);
}
