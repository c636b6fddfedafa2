//! Workers that are bound on this machine.

use rdzv_agent::topology::Hardware;

use crate::harness::start;

const ALLOWED: &str =
    "echo $LOCAL_RANK $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)";

#[test]
fn bound_workers_run_where_they_are_placed_and_others_where_the_agent_may() {
    let all = Hardware::of_this_machine().affinity();
    let (first, last) = (all.first().unwrap(), all.iter().last().unwrap());
    let processors = format!("processors={first};{last}");
    let ended = start(&["workers=3", &processors], ALLOWED).end();
    assert_eq!(ended.code(), Some(0));
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            format!("0 {first}"),
            format!("1 {last}"),
            format!("2 {all}")
        ]
    );
}

#[test]
fn a_worker_that_cannot_be_bound_ends_the_launch() {
    let nowhere = Hardware::of_this_machine()
        .affinity()
        .iter()
        .last()
        .unwrap()
        + 200;
    let processors = format!("processors=0;{nowhere}");
    let ended = start(&["workers=2", &processors, "grace=1000"], "exec sleep 1000").end();
    assert_eq!(ended.code(), Some(1));
    ended.assert_said(
        "outcome error start the worker with local rank 1, '/bin/sh': Invalid argument",
    );
}
