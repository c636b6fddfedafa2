//! Tests of the options that torchelastic does not have.
//!
//! The options are a delay before the next attempt, and failures that prevent a restart.

use std::time::Duration;

use rdzv_agent_proto::group::GroupSpec;

use crate::script::{spec, started};

fn rested(restarts: u32) -> GroupSpec {
    let mut spec = spec(restarts);
    spec.restarts.settle_delay = Duration::from_millis(200);
    spec
}

fn with_code_3_final(restarts: u32, dynamic: bool) -> GroupSpec {
    let mut spec = spec(restarts);
    spec.restarts.non_retryable = [3, -6].into();
    (spec.dynamic, spec.purge_store) = (dynamic, !dynamic);
    spec
}

#[test]
fn the_next_rendezvous_waits_for_the_settle_delay() {
    started(
        rested(1),
        1,
        "10 exited 0=1 1=1 -> failure 0 | clear
         20 cleared        -> restarting 0/1
         219 time          ->
         220 time          -> join 1
         …",
    );
}

#[test]
fn it_does_so_after_a_change_of_membership_too() {
    let spec = GroupSpec {
        dynamic: true,
        purge_store: false,
        ..rested(1)
    };
    started(
        spec,
        2,
        "10 changed 0       -> regroup: b came | signal 15 to 0 1
         20 exited 0=0 1=0! -> clear
         20 cleared         ->
         30 changed 0       ->
         220 time           -> join 0
         …",
    );
}

#[test]
fn a_signal_ends_a_run_that_rests() {
    started(
        rested(1),
        1,
        "10 exited 0=1 1=1 -> failure 0 | clear
         20 cleared        -> restarting 0/1
         30 signal 15      -> finish signalled 15 started=true",
    );
}

#[test]
fn a_failure_that_no_restart_helps_ends_the_run() {
    started(
        with_code_3_final(5, false),
        1,
        "10 exited 1=3    -> failure 1 | signal 15 to 0 1
         20 exited 0=-15! -> clear
         20 cleared       -> finish failed 1=3 0=-15 (not_retryable)",
    );
}

#[test]
fn a_fatal_signal_can_be_one() {
    started(
        with_code_3_final(5, false),
        1,
        "10 exited 0=-6 1=0 -> failure 0 | clear
         20 cleared         -> finish failed 0=-6 1=0 (not_retryable)",
    );
}

#[test]
fn the_other_nodes_hear_of_it_at_once() {
    started(
        with_code_3_final(5, true),
        2,
        "10 exited 0=3 1=1 -> failure 0 | announce 0 | clear
         20 cleared        -> finish failed 0=3 1=1 (not_retryable)",
    );
}

#[test]
fn a_worker_that_ends_so_because_it_was_stopped_is_restarted() {
    started(
        with_code_3_final(5, false),
        1,
        "10 exited 1=7  -> failure 1 | signal 15 to 0 1
         20 exited 0=3! -> clear
         20 cleared     -> restarting 4/5 | join 1
         …",
    );
}
