//! Notice that the scheduler will take the node away.
//! The notice is a signal, or comes from another agent of the round.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rdzv_agent_proto::group::{Exit, GroupInput, WorkerExit};
use rdzv_core::rank::GroupRank;
use rdzv_core::time::{Mono, Wall};
use tracing::warn;

use super::AgentLoop;
use crate::signal_copies::Taken;
use crate::supervisor::Supervisor;
use crate::{AgentEvent, Outcome};

/// Number of SIGTERM, the default closing signal.
///
/// Workers may also exit because of SIGTERM after a notice.
const CLOSING_SIGNAL: i32 = 15;

/// Notice of preemption that this agent handles.
#[derive(Debug, Default)]
pub(super) struct Preemption {
    since: Option<Mono>,
    /// Agent of another node that received the signal.
    by: Option<GroupRank>,
    /// `true` if this node itself received the signal.
    by_signal: bool,
    /// `true` if the scheduler itself has sent the signal to the workers.
    workers_have_it: bool,
}

impl Preemption {
    pub(super) fn workers_have_it(&self) -> bool {
        self.workers_have_it
    }

    pub(super) fn outcome(&self, signal: i32, exits: &[WorkerExit], now: Mono) -> Outcome {
        Outcome::Preempted {
            signal,
            used: self.since.map_or(Duration::ZERO, |since| now.since(since)),
            in_order: exits.iter().all(|exit| is_in_order(exit.exit, signal)),
        }
    }
}

/// `true` if a worker exited with 0, or because of the notice or SIGTERM.
fn is_in_order(exit: Exit, notice: i32) -> bool {
    let by = |signal: i32| signal == notice || signal == CLOSING_SIGNAL;
    match exit {
        Exit::Code(code) => code == 0 || by(code - 128),
        Exit::Signal(signal) => by(signal),
    }
}

impl<S: Supervisor> AgentLoop<'_, S> {
    /// Handles the signal of the notice, received here or by another node.
    /// A second signal on this node is a request to stop.
    pub(super) fn notice(&mut self, taken: Taken) -> Option<GroupInput> {
        let Taken { signal, here, .. } = taken;
        let is_known = self.preemption.since.is_some();
        let is_again = here && std::mem::replace(&mut self.preemption.by_signal, true);
        if is_again {
            return Some(self.stop(signal));
        }
        if is_known {
            return None;
        }
        self.preemption.workers_have_it = taken.workers_have_it;
        if here {
            self.rendezvous.announce_preemption(signal);
            return Some(self.take_notice(signal, None));
        }
        Some(self.take_notice(signal, self.preemption.by))
    }

    /// Records that another agent of the round received the signal.
    pub(super) fn preempted_elsewhere(&mut self, signal: i32, by: GroupRank) {
        self.preemption.by = Some(by);
        self.requests.notice_elsewhere(signal);
    }

    fn take_notice(&mut self, signal: i32, by: Option<GroupRank>) -> GroupInput {
        let now = self.clock.now();
        self.preemption.since = Some(now.mono);
        let plan = self.config.preemption.as_ref();
        let shutdown_timeout = plan.map_or(Duration::ZERO, |plan| plan.shutdown_timeout);
        let file = plan.and_then(|plan| plan.file.as_deref());
        if let Some(file) = file
            && let Err(error) = write(file, now.wall, shutdown_timeout)
        {
            warn!(
                "cannot write the preemption notice {}: {error}",
                file.display()
            );
        }
        self.emit(AgentEvent::Preempted {
            at: now.wall,
            signal,
            by,
            shutdown_timeout,
        });
        GroupInput::Preempted(signal)
    }
}

/// Writes the time at which the workers' time ends, atomically.
fn write(file: &Path, now: Wall, shutdown_timeout: Duration) -> std::io::Result<()> {
    let deadline = now.unix_seconds_f64() + shutdown_timeout.as_secs_f64();
    let part = file.with_extension("part");
    fs::write(&part, format!("{deadline:.3}\n"))?;
    fs::rename(part, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_end_in_order_with_0_or_as_the_signal_ends_a_process() {
        for exit in [
            Exit::Code(0),
            Exit::Code(143),
            Exit::Code(138),
            Exit::Signal(10),
            Exit::Signal(15),
        ] {
            assert!(is_in_order(exit, 10), "{exit:?}");
        }
        for exit in [
            Exit::Code(1),
            Exit::Code(137),
            Exit::Signal(9),
            Exit::Signal(11),
        ] {
            assert!(!is_in_order(exit, 10), "{exit:?}");
        }
    }
}
