//! Guard's action for an agent that is stopped (SIGSTOP) and has a fence.
//!
//! The agent's workers must not run past their lease, and a stopped agent cannot suspend them.

use std::future::pending;
use std::time::Duration;

use rdzv_core::time::Mono;
use rdzv_rendezvous::{Kept, fence};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use crate::reap::{is_stopped, signal_below};

/// Delay after the lease, so that the agent's own signals come first.
const LATE: Duration = Duration::from_millis(50);

/// Stop of the workers by the guard, in the agent's place.
#[derive(Debug)]
pub(super) struct StoppedAgent {
    kept: Option<Kept>,
    /// `true` while the agent is stopped and its workers may run.
    is_due: bool,
}

impl StoppedAgent {
    pub(super) fn new(kept: Option<Kept>) -> Self {
        Self {
            kept,
            is_due: false,
        }
    }

    pub(super) fn begin(&mut self) {
        self.is_due = self.kept.is_some();
    }

    /// Records that the agent continues; the agent resumes its workers itself.
    pub(super) fn end(&mut self) {
        self.is_due = false;
    }

    /// Stops all descendants of the agent after their lease has ended.
    ///
    /// Never returns if there is nothing to do. Cancel-safe: the caller may drop the future.
    pub(super) async fn stop_in_time(&mut self, agent: Pid) {
        if !self.is_due {
            return pending().await;
        }
        let note = self.kept.as_ref().and_then(|kept| kept.read_note().ok());
        let lease_end = note.map_or(0, |note| note.lease_end);
        if lease_end == 0 {
            return pending().await;
        }
        let lease_end = Mono::from_origin(Duration::from_millis(lease_end)) + LATE;
        sleep(lease_end.since(fence::now().mono)).await;
        self.is_due = false;
        signal_below(agent, Signal::STOP);
        if !is_stopped(agent) {
            // The agent continued a moment ago. This signal makes it manage its workers again.
            let _ = kill_process(agent, Signal::CONT);
        }
    }
}
