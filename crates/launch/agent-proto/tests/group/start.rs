//! Tests from the start of a run until its workers run.

use crate::script::{run, spec};

/// Runs a script that begins when the first of two workers has been started.
fn first_started_then(max_restarts: u32, script: &str) {
    let started = "
        0 begin      -> join 0
        0 joined     -> assign
        0 assigned   -> assigned 2 | start 0
        0 started 0  -> start 1
    ";
    run(spec(max_restarts), 1, &format!("{started}{script}"));
}

#[test]
fn a_worker_that_cannot_be_started_stops_those_before_it() {
    first_started_then(
        3,
        "0 broken     -> signal 15 to 0
         5 exited 0=-15! -> clear
         5 cleared    -> finish broken",
    );
}

#[test]
fn a_worker_that_was_being_started_when_the_group_was_stopped_is_stopped_too() {
    first_started_then(
        0,
        "1 signal 15  -> signal 15 to 0
         2 started 1  -> signal 15 to 1
         3 exited 0=-15! 1=-15! -> clear
         3 cleared    -> finish signalled 15 started=true",
    );
}

#[test]
fn an_early_failure_stops_the_start_of_the_others() {
    first_started_then(
        0,
        "1 exited 0=3 -> failure 0 | clear
         1 cleared    -> finish failed 0=3",
    );
}

#[test]
fn a_failed_rendezvous_ends_the_run() {
    run(
        spec(3),
        1,
        "0 begin  -> join 0
         9 broken -> finish broken",
    );
}

#[test]
fn too_few_devices_end_the_run_before_any_worker() {
    let mut spec = spec(3);
    spec.virtual_local_rank = Some(rdzv_agent_proto::topology::VisibleLists {
        hip: None,
        cuda: Some("4".into()),
    });
    run(
        spec,
        1,
        "0 begin    -> join 0
         0 joined   -> assign
         0 assigned -> finish devices: local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4",
    );
}
