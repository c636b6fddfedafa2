//! Tests of workers that run and make no progress.
//!
//! `hang 0` can be restarted, `hang 0!` cannot.

use rdzv_agent_proto::group::GroupState;

use crate::script::{of_two_then, started_then};

#[test]
fn a_hang_uses_a_restart_as_a_failure_does() {
    let group = started_then(
        1,
        "10 hang 1         -> unhealthy 1 | signal 15 to 0 1
         20 exited 0=0! 1=-15! -> clear
         30 cleared        -> restarting UNHEALTHY 0/1 | join 1
         30 joined         -> purge | assign
         30 assigned       -> assigned 2 | start 0
         30 started 0      -> start 1
         30 started 1      ->
         40 hang 0 1       -> unhealthy 0 1 for good | signal 15 to 0 1
         50 exited 1=-15! 0=-15! -> clear
         50 cleared        -> finish failed 1=-15 0=-15 hung 0 1",
    );
    assert_eq!(group.restart_count(), 1);
}

#[test]
fn a_worker_that_the_kernel_holds_forfeits_the_restarts() {
    let group = started_then(
        3,
        "   10 hang 0!      -> unhealthy 0 for good | signal 15 to 0 1
            20 exited 1=-15! ->
          8010 time        -> kill 0
         18010 time        -> abandon 0 | clear
         18010 cleared     -> finish failed 1=-15 hung 0 (workers_held)",
    );
    assert_eq!(group.restart_count(), 0);
    assert_eq!(group.state(), GroupState::Failed);
}

#[test]
fn a_run_with_a_hang_fails_even_if_all_workers_end_well_when_they_are_stopped() {
    started_then(
        3,
        "10 hang 1!            -> unhealthy 1 for good | signal 15 to 0 1
         20 exited 0=0! 1=0!   -> clear
         20 cleared            -> finish failed 0=0 1=0 hung 1 (workers_held)",
    );
}

#[test]
fn who_has_ended_meanwhile_does_not_hang() {
    started_then(
        0,
        "10 exited 1=0  ->
         10 hang 1      ->
         11 exited 0=0  -> clear
         11 hang 0!     ->
         11 cleared     -> finish succeeded",
    );
}

#[test]
fn a_hang_while_the_group_is_stopped_changes_nothing() {
    let group = started_then(
        1,
        "10 exited 1=7  -> failure 1 | signal 15 to 0 1
         11 hang 0!     ->
         20 exited 0=0! -> clear
         20 cleared     -> restarting 0/1 | join 1
         …",
    );
    assert_eq!(group.restart_count(), 1);
}

#[test]
fn a_hang_of_the_last_attempt_is_no_ones_fault_but_this_nodes() {
    of_two_then(
        0,
        "10 hang 1             -> unhealthy 1 for good | signal 15 to 0 1
         11 changed 3          ->
         20 exited 0=0! 1=-15! -> clear
         20 cleared            -> finish failed 0=0 1=-15 hung 1",
    );
}

#[test]
fn a_signal_ends_a_run_that_would_have_been_restarted_after_a_hang() {
    started_then(
        1,
        "10 hang 1             -> unhealthy 1 | signal 15 to 0 1
         11 signal 2           -> signal 2 to 0 1
         20 exited 0=0! 1=-15! -> clear
         20 cleared            -> finish signalled 2 started=true",
    );
}

#[test]
fn the_group_is_unhealthy_while_it_is_stopped_because_of_a_hang() {
    let group = started_then(
        0,
        "10 hang 1 -> unhealthy 1 for good | signal 15 to 0 1
         …",
    );
    assert_eq!(group.state(), GroupState::Unhealthy);
    assert!(group.state().is_running());
}

#[test]
fn states_have_the_names_and_numbers_of_torchelastic() {
    let states = [
        (GroupState::Unknown, "UNKNOWN", 0, false),
        (GroupState::Init, "INIT", 1, false),
        (GroupState::Healthy, "HEALTHY", 2, true),
        (GroupState::Unhealthy, "UNHEALTHY", 4, true),
        (GroupState::Stopped, "STOPPED", 8, false),
        (GroupState::Succeeded, "SUCCEEDED", 16, false),
        (GroupState::Failed, "FAILED", 32, false),
    ];
    for (state, name, number, running) in states {
        assert_eq!(
            (state.name(), state.number(), state.is_running()),
            (name, number, running)
        );
    }
}
