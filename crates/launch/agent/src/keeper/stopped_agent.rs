//! An agent that is stopped (SIGSTOP) and has a fence: its workers must not run on past their lease, and it cannot stop them.

use std::future::pending;
use std::time::Duration;

use rdzv_core::time::Mono;
use rdzv_rendezvous::{Kept, fence};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use crate::reap::{is_stopped, signal_below};

/// The time for signals to have stopped the workers already.
const LATE: Duration = Duration::from_millis(50);

/// The guard's part: it stops them in the agent's place.
#[derive(Debug)]
pub(super) struct StoppedAgent {
    kept: Option<Kept>,
    /// The agent is stopped, and its workers may run.
    is_due: bool,
}

impl StoppedAgent {
    pub(super) fn new(kept: Option<Kept>) -> Self {
        Self {
            kept,
            is_due: false,
        }
    }

    /// The agent is stopped.
    pub(super) fn begin(&mut self) {
        self.is_due = self.kept.is_some();
    }

    /// It goes on, and continues what is below it when that may run.
    pub(super) fn end(&mut self) {
        self.is_due = false;
    }

    /// Stops everything below the agent once the lease of its workers is over; permanently waits if there is nothing to do. May
    /// be dropped while waiting.
    pub(super) async fn stop_in_time(&mut self, agent: Pid) {
        if !self.is_due {
            return pending().await;
        }
        let note = self.kept.as_ref().and_then(|kept| kept.read_note().ok());
        let until = note.map_or(0, |note| note.lease_until);
        if until == 0 {
            return pending().await;
        }
        let until = Mono::from_origin(Duration::from_millis(until)) + LATE;
        sleep(until.since(fence::now().mono)).await;
        self.is_due = false;
        signal_below(agent, Signal::STOP);
        if !is_stopped(agent) {
            // It goes on since a moment ago. With this it looks after its workers again.
            let _ = kill_process(agent, Signal::CONT);
        }
    }
}
