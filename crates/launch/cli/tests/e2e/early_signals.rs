//! Tests of signals at every moment of the start of a launch.
//!
//! The signals arrive before the launcher handles signals, between keeper and agent, and during the
//! start of the workers.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Running, ends_within, run_shell};

/// Time between the moments of two successive signals.
const STEP: Duration = Duration::from_micros(700);

/// Number of moments.
///
/// On a fast machine, the moments extend past the start of the workers. On a slow machine, they end
/// during the start.
const MOMENTS: u32 = 60;

fn start() -> Running {
    let script = "trap 'exit 0' TERM INT HUP; echo started; while :; do sleep 60 & wait $!; done";
    run_shell("--nproc-per-node 2 --shutdown-timeout 5", script).start()
}

#[test]
fn whenever_a_signal_comes_the_run_ends_by_it_and_nothing_is_left() {
    let mut codes = Vec::new();
    for moment in 0..MOMENTS {
        let signal = [Signal::TERM, Signal::INT, Signal::HUP][moment as usize % 3];
        let running = start();
        assert!(!ends_within(running.pid(), STEP * moment));
        running.signal(signal);
        // `wait` asserts that no process is left.
        let ended = running.wait();
        // Before the agent handles the signal, the signal ends the launcher; later, the code is 1.
        let code = ended.code();
        assert!(
            code == 1 || code == -signal.as_raw(),
            "{code} after {:?}: {}",
            STEP * moment,
            ended.stderr
        );
        let received = format!("Received {} death signal", signal.as_raw());
        assert!(
            code != 1 || ended.stderr.contains(&received),
            "{}",
            ended.stderr
        );
        codes.push(code);
    }
    assert!(codes[0] < 0, "first: {codes:?}");
}

#[test]
fn a_job_that_is_killed_at_any_moment_of_its_start_leaves_nothing() {
    for moment in 0..MOMENTS {
        let running = start();
        assert!(!ends_within(running.pid(), STEP * moment));
        running.signal(Signal::KILL);
        assert!(running.all_gone_within(Duration::from_secs(20)), "{moment}");
        running.wait().expect(-9);
    }
}
