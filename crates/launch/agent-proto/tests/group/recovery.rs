//! Scripts of workers that recover in their processes.

use std::time::Duration;

use crate::script::{in_process_then, spec, started, started_then};

#[test]
fn a_survivor_keeps_its_process_and_only_the_failed_worker_is_started() {
    in_process_then(
        3,
        1,
        "
        10 exited 1=-9   -> failure 1 | abort 0
        12 ready 0       -> restarting 2/3 | discard 1 | join 1
        13 joined        -> purge | assign
        14 assigned      -> assigned 2 | go 0 | start 1
        15 started 1     ->
        16 recoverable 1 ->
        20 exited 0=-9   -> failure 0 | abort 1
        …",
    );
}

#[test]
fn a_worker_that_does_not_leave_its_function_in_time_is_replaced() {
    in_process_then(
        3,
        1,
        "
        10 exited 1=-9      -> failure 1 | abort 0
        30009 time          ->
        30010 time          -> kill 0
        30011 exited 0=-9!  -> restarting 2/3 | discard 0 1 | join 1
        30012 joined        -> purge | assign
        30013 assigned      -> assigned 2 | start 0
        …",
    );
}

#[test]
fn a_worker_without_a_connection_is_stopped_as_before() {
    // IP-4.
    started_then(3, "10 exited 1=-9 -> failure 1 | signal 15 to 0 1\n…");
}

#[test]
fn an_exception_counts_as_a_failure_if_nothing_explains_it() {
    in_process_then(
        3,
        1,
        "
        10 raised 0  ->
        1010 time    -> abort 0 1
        1012 ready 1 -> restarting 2/3 | join 1
        …",
    );
    in_process_then(
        3,
        1,
        "
        10 raised 0    ->
        20 exited 1=-9 -> failure 1 | abort 0 | restarting 2/3 | discard 1 | join 1
        …",
    );
}

#[test]
fn an_exception_does_not_count_while_the_coordinator_is_missing() {
    // The coordinator is missing for up to 60 s. After 2.5 s there is another one, which knows all
    // losses 3.4 s later.
    in_process_then(
        3,
        2,
        "
        10 losses-known 60000  ->
        12 raised 0            ->
        1012 time              ->
        2500 losses-known 3400 ->
        3500 time              ->
        5800 changed 0         -> regroup: b came | abort 0 1
        5810 ready 1           -> join 0
        …",
    );
    // Without a loss, the exception is a failure of this node.
    in_process_then(
        3,
        2,
        "
        10 losses-known 60000  ->
        12 raised 0            ->
        2500 losses-known 3400 ->
        5899 time              ->
        5900 time              -> abort 0 1
        5901 ready 1           -> restarting 2/3 | join 1
        5902 joined 1          -> purge | assign
        5903 assigned          -> assigned 2 | go 0 | go 1
        6000 raised 0          ->
        7000 time              -> abort 0 1
        …",
    );
    // A limit ends the wait for a coordinator.
    in_process_then(
        3,
        2,
        "
        10 losses-known 60000 ->
        12 raised 0           ->
        60010 time            -> abort 0 1
        …",
    );
}

#[test]
fn a_worker_exits_with_its_exception_if_no_restart_is_left() {
    in_process_then(
        0,
        1,
        "
        10 raised 0     ->
        1010 time       -> fail 0
        1020 exited 0=1 -> failure 0 | signal 15 to 0 1
        …",
    );
}

#[test]
fn a_restart_of_another_node_costs_no_restart_here() {
    in_process_then(
        1,
        2,
        "
        10 restarted 0 -> regroup: b came | abort 0 1
        11 ready 0     ->
        12 ready 1     -> join 0
        13 joined 1    -> assign
        14 assigned    -> assigned 2 | go 0 | go 1
        20 exited 1=-9 -> failure 1 | abort 0
        21 ready 0     -> restarting 0/1 | discard 1 | join 1
        …",
    );
}

#[test]
fn a_signal_stops_workers_that_wait_for_the_next_round() {
    in_process_then(
        3,
        1,
        "
        10 exited 1=-9   -> failure 1 | abort 0
        11 signal 15     -> signal 15 to 0 1
        12 exited 0=-15! -> clear
        13 cleared       -> finish signalled 15 started=true",
    );
    in_process_then(
        3,
        1,
        "
        10 exited 1=-9   -> failure 1 | abort 0
        11 ready 0       -> restarting 2/3 | discard 1 | join 1
        12 signal 15     -> signal 15 to 0
        13 exited 0=-15! -> clear
        14 cleared       -> finish signalled 15 started=true",
    );
}

#[test]
fn a_survivor_that_exits_before_the_next_round_is_replaced() {
    in_process_then(
        3,
        1,
        "
        10 exited 1=-9 -> failure 1 | abort 0
        11 ready 0     -> restarting 2/3 | discard 1 | join 1
        12 exited 0=-9 -> discard 0
        13 joined      -> purge | assign
        14 assigned    -> assigned 2 | start 0
        15 started 0   -> start 1
        …",
    );
}

#[test]
fn the_successor_of_a_worker_that_the_kernel_holds_has_not_connected() {
    in_process_then(
        3,
        1,
        "
        10 exited 1=-9    -> failure 1 | abort 0
        30010 time        -> kill 0
        40010 time        -> abandon 0 | restarting 2/3 | discard 0 1 | join 1
        40011 joined      -> purge | assign
        40012 assigned    -> assigned 2 | start 0
        40013 started 0   -> start 1
        40014 started 1   ->
        40015 exited 1=-9 -> failure 1 | signal 15 to 0 1
        …",
    );
}

#[test]
fn workers_that_cannot_recover_have_the_whole_shutdown_timeout() {
    let mut spec = spec(3);
    spec.abort_timeout = Some(Duration::from_secs(1));
    started(
        spec,
        1,
        "
        1 recoverable 0 ->
        10 raised 0     ->
        1010 time       -> abort 0 | signal 15 to 1
        2010 time       ->
        31010 time      -> kill 1
        …",
    );
}
