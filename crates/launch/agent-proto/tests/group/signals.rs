//! Tests of events outside the group that end a run.
//!
//! These events are signals to the agent and the loss of the keeper.

use crate::script::{run, spec, started_then, static_two_then};

#[test]
fn a_signal_reaches_the_workers_as_it_is() {
    started_then(
        5,
        "10 signal 1      -> signal 1 to 0 1
         20 exited 0=-1!  ->
         30 exited 1=0!   -> clear
         30 cleared       -> finish signalled 1 started=true",
    );
}

#[test]
fn three_signals_end_the_shutdown_timeout_but_never_the_kill() {
    started_then(
        0,
        "    0 signal 15 -> signal 15 to 0 1
           100 signal 15 ->
          1000 signal 15 -> signal 15 to 0 1
          1500 signal 15 -> signal 15 to 0 1 | kill 0 1
          2000 signal 15 ->
          2001 exited 0=-9! 1=-9! -> clear
          2001 cleared -> finish signalled 15 started=true",
    );
}

#[test]
fn a_second_signal_leaves_a_quarter_of_the_shutdown_timeout() {
    started_then(
        0,
        "    0 signal 15 -> signal 15 to 0 1
          1000 signal 2  -> signal 2 to 0 1
          2999 time      ->
          3000 time      -> kill 0 1
          3001 exited 0=-9! 1=-9! -> clear
          3001 cleared -> finish signalled 15 started=true",
    );
}

#[test]
fn a_signal_before_the_first_worker_ends_the_run_at_once() {
    run(
        spec(0),
        1,
        "0 begin     -> join 0
         9 signal 15 -> finish signalled 15 started=false",
    );
}

#[test]
fn a_signal_while_a_restart_is_being_prepared_cancels_it() {
    for script in [
        "10 exited 1=7   -> failure 1 | signal 15 to 0 1
         20 signal 2     -> signal 2 to 0 1
         30 exited 0=-2! -> clear
         30 cleared      -> finish signalled 2 started=true",
        "10 exited 1=7 0=1 -> failure 1 | clear
         20 signal 2       ->
         30 cleared        -> finish signalled 2 started=true",
    ] {
        started_then(3, script);
    }
}

#[test]
fn the_last_failure_is_reported_even_if_a_signal_follows() {
    started_then(
        0,
        "10 exited 1=7   -> failure 1 | signal 15 to 0 1
         20 signal 2     -> signal 2 to 0 1
         30 exited 0=-2! -> clear
         30 cleared      -> finish failed 1=7 0=-2",
    );
}

#[test]
fn without_its_keeper_the_group_has_ended_within_half_a_second() {
    started_then(
        3,
        "1000 keeper-lost -> signal 15 to 0 1
         1400 time        -> kill 0 1
         1401 exited 0=-9! 1=-9! -> clear
         1402 cleared     -> finish keeper lost",
    );
}

#[test]
fn the_loss_of_the_keeper_shortens_a_running_shutdown_timeout() {
    started_then(
        0,
        "   0 signal 15    -> signal 15 to 0 1
         1000 keeper-lost -> signal 15 to 0 1
         1400 time        -> kill 0 1
         1401 exited 0=-9! 1=-9! -> clear
         1402 cleared     -> finish keeper lost",
    );
}

#[test]
fn a_signal_at_the_exit_barrier_ends_the_run() {
    static_two_then(
        0,
        "10 exited 0=0 1=0 -> clear
         10 cleared        -> barrier of 2
         99 signal 15      -> finish signalled 15 started=true",
    );
}

#[test]
fn workers_have_the_time_of_a_preemption_and_then_the_shutdown_timeout() {
    started_then(
        3,
        "    0 preempted 10   -> notify 10 to 0 1
           100 exited 0=0     ->
         59999 time           ->
         60000 time           -> signal 15 to 0 1
         67999 time           ->
         68000 time           -> kill 1
         68001 exited 1=-9!   -> clear
         68001 cleared        -> finish preempted 10 0=0 1=-9",
    );
}

#[test]
fn after_a_preemption_no_failure_is_restarted() {
    for script in [
        "10 preempted 10   -> notify 10 to 0 1
         20 exited 1=7     ->
         30 exited 0=0     -> clear
         30 cleared        -> finish preempted 10 1=7 0=0",
        "10 exited 1=7     -> failure 1 | signal 15 to 0 1
         20 preempted 10   ->
         30 exited 0=-15!  -> clear
         30 cleared        -> finish preempted 10 1=7 0=-15",
    ] {
        started_then(3, script);
    }
}

#[test]
fn a_signal_shortens_the_time_after_a_preemption() {
    started_then(
        0,
        "   0 preempted 10 -> notify 10 to 0 1
         1000 signal 15    -> signal 15 to 0 1
         9000 time         -> kill 0 1
         9001 exited 0=-9! 1=-9! -> clear
         9001 cleared      -> finish preempted 10 0=-9 1=-9",
    );
}

#[test]
fn nodes_that_end_earlier_take_nothing_from_the_time_of_the_others() {
    started_then(
        0,
        "0 preempted 10   -> notify 10 to 0 1
         1 lost           ->
         9 exited 0=0 1=0 -> clear
         9 cleared        -> finish preempted 10 0=0 1=0",
    );
}

#[test]
fn work_that_is_done_is_not_preempted() {
    started_then(
        0,
        "1 exited 0=0 1=0 -> clear
         2 preempted 10   ->
         3 cleared        -> finish succeeded",
    );
}
