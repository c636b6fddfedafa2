//! Tests of how attempts end, and of the steps that follow.

use crate::script::{spec, started, started_then, static_two_then};

#[test]
fn all_workers_exit_well() {
    let group = started_then(
        0,
        "10 exited 1=0 ->
         20 exited 0=0 -> clear
         20 cleared    -> finish succeeded",
    );
    assert_eq!(group.state().name(), "SUCCEEDED");
}

#[test]
fn several_agents_wait_for_one_another() {
    static_two_then(
        0,
        "10 exited 0=0 1=0 -> clear
         10 cleared        -> barrier of 2
         99 barrier-passed -> finish succeeded",
    );
}

#[test]
fn every_attempt_but_the_first_begins_with_an_empty_store() {
    started_then(
        1,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         20 exited 0=0!   -> clear
         30 cleared       -> restarting 0/1 | join 1
         30 joined        -> purge | assign
         30 assigned      -> assigned 2 | start 0
         30 started 0     -> start 1
         30 started 1     ->
         40 exited 0=1    -> failure 0 | signal 15 to 0 1
         50 exited 1=-15! -> clear
         50 cleared       -> finish failed 0=1 1=-15",
    );
}

#[test]
fn a_shared_store_is_not_emptied_under_other_nodes() {
    let mut spec = spec(1);
    spec.purge_store = false;
    started(
        spec,
        2,
        "10 exited 0=1 1=1 -> failure 0 | clear
         10 cleared        -> restarting 0/1 | join 1
         10 joined         -> assign
         …",
    );
}

#[test]
fn workers_that_outlive_the_shutdown_timeout_are_killed() {
    let group = started_then(
        0,
        "1000 exited 1=7   -> failure 1 | signal 15 to 0 1
         8999 time         ->
         9000 time         -> kill 0
         9001 exited 0=-9! -> clear
         9001 cleared      -> finish failed 1=7 0=-9",
    );
    assert_eq!(group.restart_count(), 0);
}

#[test]
fn a_worker_that_the_kernel_does_not_end_is_given_up() {
    started_then(
        0,
        "    0 exited 1=7 -> failure 1 | signal 15 to 0 1
          8000 time       -> kill 0
         17999 time       ->
         18000 time       -> abandon 0 | clear
         28000 time       -> abandon leftovers | finish failed 1=7",
    );
}

#[test]
fn a_failure_without_restarts_stops_the_others_and_ends_the_run() {
    let group = started_then(
        0,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         20 exited 0=-15! -> clear
         20 cleared       -> finish failed 1=7 0=-15",
    );
    assert_eq!(group.state().name(), "FAILED");
}

#[test]
fn failures_of_one_moment_keep_their_order_and_nobody_is_signalled() {
    started_then(
        0,
        "10 exited 1=7 0=-11 -> failure 1 | clear
         10 cleared          -> finish failed 1=7 0=-11",
    );
}
