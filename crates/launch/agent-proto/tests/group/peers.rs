//! Tests of the reactions to events at other nodes.

use rdzv_agent_proto::group::WorkerGroupMachine;

use crate::script::{of_two_then, run, spec, started, static_two_then};

#[test]
fn a_change_of_membership_leads_to_the_next_round_and_costs_no_restart() {
    let group = of_two_then(
        0,
        "10 changed 3               -> regroup: b came | signal 15 to 0 1
         15 changed 3               ->
         20 exited 0=-15! 1=0!      -> clear
         21 cleared                 -> join 0
         30 joined 4                -> assign
         30 assigned                -> assigned 2 | start 0
         30 started 0               -> start 1
         30 started 1               ->
         90 exited 0=0 1=0          -> clear
         90 cleared                 -> barrier of 2
         91 barrier-passed          -> finish succeeded",
    );
    assert_eq!(group.restart_count(), 0);
}

#[test]
fn a_late_notice_of_an_earlier_round_changes_nothing() {
    of_two_then(
        0,
        "10 changed 2               ->
         20 exited 0=0 1=0          -> clear
         20 cleared                 -> barrier of 2
         21 barrier-passed          -> finish succeeded",
    );
}

#[test]
fn a_round_that_ended_before_it_was_known_here_is_left_immediately() {
    run(
        spec(0),
        2,
        "0 begin      -> join 0
         1 changed 6  ->
         2 joined 6   -> regroup: b came | join 0
         3 joined 7   -> assign
         4 changed 7  -> regroup: b came | join 0
         5 joined 8   -> assign
         …",
    );
}

#[test]
fn workers_that_ignore_a_regrouping_are_killed_after_the_shutdown_timeout() {
    of_two_then(
        0,
        "   0 changed 3             -> regroup: b came | signal 15 to 0 1
         8000 time                 -> kill 0 1
         8001 exited 0=-9! 1=-9!   -> clear
         8001 cleared              -> join 0
         …",
    );
}

#[test]
fn a_change_while_a_restart_is_being_prepared_is_absorbed() {
    let group = of_two_then(
        1,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         11 changed 3     ->
         12 exited 0=0!   -> clear
         13 changed 3     ->
         14 cleared       -> restarting 0/1 | join 1
         …",
    );
    assert_eq!(group.restart_count(), 1);
}

#[test]
fn a_last_failure_that_the_loss_of_a_node_explains_is_not_final() {
    for (before, after) in [
        ("11 changed 3 -> regroup: b came", ""),
        ("", "13 changed 3 -> regroup: b came"),
    ] {
        let group = of_two_then(
            0,
            &format!(
                "10 exited 1=7    -> failure 1 | signal 15 to 0 1
                 {before}
                 12 exited 0=0!   -> clear
                 {after}
                 14 cleared       -> join 0
                 …"
            ),
        );
        assert_eq!(group.restart_count(), 0);
    }
    of_two_then(
        0,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         12 exited 0=0!   -> clear
         12 cleared       ->
         1009 time        ->
         1009 changed 3   -> regroup: b came | join 0
         …",
    );
}

#[test]
fn a_last_failure_waits_for_the_losses_that_the_next_coordinator_knows() {
    of_two_then(
        0,
        "9 losses-known 60000    ->
         10 exited 1=7           -> failure 1 | signal 15 to 0 1
         12 exited 0=0!          -> clear
         12 cleared              ->
         1010 time               ->
         2500 losses-known 3400  ->
         5899 time               ->
         5899 changed 3          -> regroup: b came | join 0
         …",
    );
}

#[test]
fn a_last_failure_is_not_explained_by_a_node_that_restarts_or_waits() {
    for change in ["restarted", "waiting"] {
        for (before, after) in [
            (format!("11 {change} 3 ->"), String::new()),
            (String::new(), format!("13 {change} 3 ->")),
        ] {
            of_two_then(
                0,
                &format!(
                    "10 exited 1=7    -> failure 1 | signal 15 to 0 1
                     {before}
                     12 exited 0=0!   -> clear
                     12 cleared       ->
                     {after}
                     1010 time        -> announce 1 | finish failed 1=7 0=0"
                ),
            );
        }
    }
}

/// A node whose round 3 ends by that change, and whose worker fails in round 5.
/// Its budget is one restart.
fn regrouped_then(change: &str, between: &str, end: &str) -> WorkerGroupMachine {
    of_two_then(
        1,
        &format!(
            "10 {change} 3         -> regroup: b came | signal 15 to 0 1
             20 exited 0=-15! 1=0! -> clear
             21 cleared            -> join 0
             {between}
             30 joined 5           -> assign
             30 assigned           -> assigned 2 | start 0
             30 started 0          -> start 1
             30 started 1          ->
             40 exited 1=7         -> failure 1 | signal 15 to 0 1
             41 exited 0=0!        -> clear
             {end}"
        ),
    )
}

const NONE_LEFT: &str = "42 cleared ->\n1040 time -> announce 1 | finish failed 1=7 0=0";
const ONE_LEFT: &str = "42 cleared -> restarting 0/1 | join 1\n…";

#[test]
fn a_restart_of_another_node_is_one_of_the_jobs() {
    let group = regrouped_then("restarted", "", NONE_LEFT);
    assert_eq!(
        group.restart_count(),
        0,
        "workers see only the restarts of their node"
    );
    for change in ["changed", "waiting"] {
        regrouped_then(change, "", ONE_LEFT);
    }
}

#[test]
fn a_restart_of_another_node_counts_once_however_far_this_one_is_in_the_round() {
    // Before this node knows the round, also if the notice arrives twice; and while it agrees on
    // ranks.
    for between in [
        "22 restarted 4 ->\n23 restarted 4 ->\n25 joined 4 -> regroup: b came | join 0",
        "22 joined 4 -> assign\n23 restarted 4 -> regroup: b came | join 0",
    ] {
        regrouped_then("changed", between, NONE_LEFT);
    }
    // A late notice about a round that this node has left.
    regrouped_then("changed", "22 restarted 3 ->", ONE_LEFT);
}

#[test]
fn a_last_failure_that_nothing_explains_is_announced_to_the_others() {
    of_two_then(
        0,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         12 exited 0=0!   -> clear
         12 cleared       ->
         1010 time        -> announce 1 | finish failed 1=7 0=0",
    );
    // The same holds if a sibling does not exit.
    of_two_then(
        0,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         1010 time        -> announce 1
         1011 changed 3   ->
         8010 time        -> kill 0
         8011 exited 0=-9! -> clear
         8011 cleared     -> finish failed 1=7 0=-9",
    );
}

#[test]
fn a_signal_ends_a_run_that_waits_for_an_explanation() {
    for script in [
        "10 exited 1=7 0=0 -> failure 1 | clear
         12 cleared        ->
         20 signal 15      -> announce 1 | finish failed 1=7 0=0",
        "10 exited 1=7     -> failure 1 | signal 15 to 0 1
         12 signal 2       -> announce 1 | signal 2 to 0 1
         13 changed 3      ->
         14 exited 0=0!    -> clear
         15 cleared        -> finish failed 1=7 0=0",
    ] {
        of_two_then(0, script);
    }
}

#[test]
fn a_failed_peer_ends_the_run_wherever_it_is() {
    for script in [
        "10 peer-failed b        -> signal 15 to 0 1
         11 exited 0=-15! 1=0!   -> clear
         12 cleared              -> finish peer b: code 7",
        "10 exited 0=0 1=0       -> clear
         11 peer-failed b        ->
         12 cleared              -> finish peer b: code 7",
        "10 exited 0=0 1=0       -> clear
         12 cleared              -> barrier of 2
         13 peer-failed b        -> finish peer b: code 7",
        "10 changed 3            -> regroup: b came | signal 15 to 0 1
         11 exited 0=-15! 1=0!   -> clear
         12 cleared              -> join 0
         13 peer-failed b        -> finish peer b: code 7",
        "10 changed 3            -> regroup: b came | signal 15 to 0 1
         10 peer-failed b        -> signal 15 to 0 1
         11 exited 0=-15! 1=0!   -> clear
         12 cleared              -> finish peer b: code 7",
    ] {
        of_two_then(5, script);
    }
}

#[test]
fn the_own_final_failure_stays_the_one_reported_when_a_peer_fails_too() {
    for script in [
        "10 exited 1=7           -> failure 1 | signal 15 to 0 1
         11 peer-failed b        -> signal 15 to 0 1
         12 exited 0=0!          -> clear
         13 cleared              -> finish failed 1=7 0=0",
        "10 exited 1=7 0=0       -> failure 1 | clear
         12 cleared              ->
         13 peer-failed b        -> finish failed 1=7 0=0",
    ] {
        of_two_then(0, script);
    }
    for script in [
        "10 exited 1=7           -> failure 1 | announce 1 | signal 15 to 0 1
         11 peer-failed b        -> signal 15 to 0 1
         12 exited 0=0!          -> clear
         13 cleared              -> finish failed 1=7 0=0",
        "10 exited 1=7 0=0       -> failure 1 | announce 1 | clear
         11 peer-failed b        ->
         12 cleared              -> finish failed 1=7 0=0",
    ] {
        static_two_then(0, script);
    }
}

#[test]
fn a_failure_that_no_restart_helps_stays_though_restarts_are_left() {
    let mut spec = spec(5);
    spec.restarts.non_retryable = [7].into();
    started(
        spec,
        2,
        "10 exited 1=7       -> failure 1 | announce 1 | signal 15 to 0 1
         11 peer-failed b    -> signal 15 to 0 1
         12 exited 0=0!      -> clear
         13 cleared          -> finish failed 1=7 0=0 (not_retryable)",
    );
}

/// In none of these cases does the node announce its own failure to the others.
#[test]
fn a_failure_with_restarts_left_gives_way_to_the_final_one_of_a_peer() {
    for (of_two, others) in [
        (
            static_two_then as fn(u32, &str) -> WorkerGroupMachine,
            "static",
        ),
        (of_two_then, "dynamic"),
    ] {
        println!("{others}");
        // A peer fails while the workers of this node are being stopped.
        let group = of_two(
            1,
            "10 exited 1=7           -> failure 1 | signal 15 to 0 1
             11 peer-failed b        -> signal 15 to 0 1
             12 exited 0=0!          -> clear
             13 cleared              -> finish peer b: code 7",
        );
        assert_eq!(group.restart_count(), 0);
        // A peer fails while leftovers of the workers are being cleared.
        let group = of_two(
            1,
            "10 exited 1=7           -> failure 1 | signal 15 to 0 1
             12 exited 0=0!          -> clear
             13 peer-failed b        ->
             14 cleared              -> finish peer b: code 7",
        );
        assert_eq!(group.restart_count(), 0);
        // A hang is a failure like any other.
        of_two(
            1,
            "10 hang 1               -> unhealthy 1 | signal 15 to 0 1
             11 peer-failed b        -> signal 15 to 0 1
             12 exited 0=0! 1=0!     -> clear
             13 cleared              -> finish peer b: code 7",
        );
    }
}

#[test]
fn who_has_closed_the_run_may_say_why_after_a_failure_with_restarts_left() {
    for script in [
        "10 exited 1=7           -> failure 1 | signal 15 to 0 1
         11 closed               -> signal 15 to 0 1
         12 peer-failed b        -> signal 15 to 0 1
         13 exited 0=0!          -> clear
         14 cleared              -> finish peer b: code 7",
        "10 exited 1=7           -> failure 1 | signal 15 to 0 1
         11 exited 0=0!          -> clear
         12 closed               ->
         13 peer-failed b        ->
         14 cleared              -> finish peer b: code 7",
    ] {
        of_two_then(1, script);
    }
    // If no peer gives a reason, users need to know this node's own failure. A later signal does
    // not change that.
    of_two_then(
        1,
        "10 exited 1=7           -> failure 1 | signal 15 to 0 1
         11 closed               -> signal 15 to 0 1
         12 signal 15            -> signal 15 to 0 1
         13 exited 0=0!          -> clear
         14 cleared              -> finish failed 1=7 0=0 (run_ended)",
    );
}

#[test]
fn a_failure_with_restarts_left_gives_way_to_the_loss_of_the_rendezvous() {
    of_two_then(
        1,
        "10 exited 1=7           -> failure 1 | signal 15 to 0 1
         11 lost                 -> signal 15 to 0 1
         12 exited 0=0!          -> clear
         13 cleared              -> finish broken",
    );
    of_two_then(
        0,
        "10 exited 1=7           -> failure 1 | signal 15 to 0 1
         11 lost                 -> signal 15 to 0 1
         12 exited 0=0!          -> clear
         13 cleared              -> finish failed 1=7 0=0",
    );
}

#[test]
fn a_run_that_another_node_closed_ends_here_too() {
    of_two_then(
        5,
        "10 closed               -> signal 15 to 0 1
         11 exited 0=-15! 1=0!   -> clear
         12 cleared              -> finish closed",
    );
    // The node that closed the run may report the reason a little later.
    of_two_then(
        5,
        "10 closed               -> signal 15 to 0 1
         10 peer-failed b        -> signal 15 to 0 1
         11 exited 0=-15! 1=0!   -> clear
         12 cleared              -> finish peer b: code 7",
    );
}

#[test]
fn a_node_that_has_passed_the_barrier_may_close_before_the_others_have() {
    for script in [
        "10 exited 0=0 1=0       -> clear
         12 cleared              -> barrier of 2
         13 closed               ->
         14 barrier-passed       -> finish succeeded",
        "10 exited 0=0 1=0       -> clear
         11 closed               ->
         12 cleared              -> barrier of 2
         5011 time               ->
         5012 time               -> finish closed",
    ] {
        of_two_then(0, script);
    }
}

#[test]
fn who_waits_at_the_barrier_of_a_round_that_is_over_leaves_with_success() {
    for script in [
        "10 exited 0=0 1=0       -> clear
         12 cleared              -> barrier of 2
         13 changed 3            -> finish succeeded alone: b came",
        "10 exited 0=0 1=0       -> clear
         11 changed 3            ->
         12 cleared              -> finish succeeded alone: b came",
    ] {
        of_two_then(0, script);
    }
}

#[test]
fn a_lost_rendezvous_does_not_disturb_the_barrier() {
    of_two_then(
        0,
        "10 exited 0=0 1=0       -> clear
         12 cleared              -> barrier of 2
         14 lost                 ->
         15 barrier-passed       -> finish succeeded",
    );
}

#[test]
fn without_its_rendezvous_the_run_ends() {
    of_two_then(
        5,
        "10 lost                 -> signal 15 to 0 1
         11 exited 0=-15! 1=0!   -> clear
         12 cleared              -> finish broken",
    );
}

#[test]
fn a_surplus_node_ends_with_the_job() {
    run(
        spec(0),
        2,
        "0 begin       -> join 0
         9 not-needed  -> finish not needed",
    );
}

#[test]
fn a_failure_that_is_final_is_announced_to_static_nodes_at_once() {
    static_two_then(
        0,
        "10 exited 1=7    -> failure 1 | announce 1 | signal 15 to 0 1
         20 exited 0=-15! -> clear
         20 cleared       -> finish failed 1=7 0=-15",
    );
    static_two_then(
        1,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         20 exited 0=-15! -> clear
         20 cleared       -> restarting 0/1 | join 1
         …",
    );
    for script in [
        "10 peer-failed b    -> signal 15 to 0 1
         20 exited 0=0! 1=0! -> clear
         20 cleared          -> finish peer b: code 7",
        "10 exited 0=0 1=0 -> clear
         10 cleared        -> barrier of 2
         20 peer-failed b  -> finish peer b: code 7",
    ] {
        static_two_then(0, script);
    }
}

/// Two nodes whose coordinator provides the exit barrier; this one waits there.
/// Its budget is one restart.
fn at_the_barrier_of_two_then(script: &str) -> WorkerGroupMachine {
    let mut spec = spec(1);
    (spec.purge_store, spec.dynamic, spec.joins_again) = (false, true, true);
    let script = format!(
        "0 begin      -> join 0
         0 joined 3!  -> assign
         0 assigned   -> assigned 2 | start 0
         0 started 0  -> start 1
         0 started 1  ->
         9 exited 0=0 1=0 -> clear
         {script}"
    );
    run(spec, 2, &script)
}

#[test]
fn a_node_that_has_succeeded_joins_again_with_one_that_restarts_or_joins() {
    for change in ["restarted", "waiting"] {
        let joins = format!(
            "10 cleared     -> barrier of 2
             11 {change} 3  -> regroup: b came | join 0
             12 joined 4!   -> assign
             12 assigned    -> assigned 2 | start 0
             12 started 0   -> start 1
             12 started 1   ->"
        );
        // The restart of another node is one of the job's, and leaves no further one.
        let end = match change {
            "restarted" => "20 exited 1=7 0=0 -> failure 1 | clear\n21 cleared ->\n…",
            _ => "20 exited 1=7 0=0 -> failure 1 | clear\n21 cleared -> restarting 0/1 | join 1\n…",
        };
        let group = at_the_barrier_of_two_then(&format!("{joins}\n{end}"));
        assert_eq!(group.restart_count(), u32::from(change == "waiting"));
        // The notice arrives before the barrier.
        at_the_barrier_of_two_then(&format!(
            "10 {change} 3 ->
             11 cleared    -> regroup: b came | join 0
             …"
        ));
    }
}

#[test]
fn a_node_at_the_coordinators_barrier_waits_after_a_loss_for_an_answer() {
    for script in [
        "10 cleared   -> barrier of 2
         11 changed 3 ->
         12 alone 3   -> finish succeeded alone: b came, and the workers of all other nodes have succeeded",
        "10 changed 3 ->
         11 cleared   -> barrier of 2
         12 waiting 3 -> regroup: b came | join 0
         …",
    ] {
        at_the_barrier_of_two_then(script);
    }
}

#[test]
fn after_a_loss_the_last_of_two_nodes_ends_and_one_of_three_joins_again() {
    for (agents, end) in [
        (2, "finish succeeded alone: b came"),
        (3, "regroup: b came | join 0\n…"),
    ] {
        for (before, after) in [
            (format!("10 cleared -> barrier of {agents}"), "11 changed 3"),
            ("10 changed 3 ->".to_owned(), "11 cleared"),
        ] {
            let mut spec = spec(1);
            (spec.purge_store, spec.dynamic, spec.joins_again) = (false, true, true);
            let script = format!(
                "0 begin      -> join 0
                 0 joined 3   -> assign
                 0 assigned   -> assigned 2 | start 0
                 0 started 0  -> start 1
                 0 started 1  ->
                 9 exited 0=0 1=0 -> clear
                 {before}
                 {after} -> {end}"
            );
            run(spec, agents, &script);
        }
    }
}

#[test]
fn a_node_as_of_torchrun_never_joins_again_after_its_success() {
    let mut spec = spec(1);
    (spec.purge_store, spec.dynamic) = (false, true);
    started(
        spec,
        2,
        "10 exited 0=0 1=0 -> clear
         10 cleared        -> barrier of 2
         11 restarted 3    -> finish succeeded alone: b came",
    );
}

#[test]
fn a_node_whose_wait_for_others_is_over_leaves_them() {
    at_the_barrier_of_two_then(
        "10 cleared         -> barrier of 2
         11 barrier-timeout -> finish succeeded alone: too long",
    );
}
