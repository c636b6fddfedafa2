//! The fence of this node: its workers stand still while no coordinator has a majority.

use std::time::Duration;

use rdzv_agent_proto::group::GroupInput;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::Mono;
use rdzv_rendezvous::fence::{self, Input, Output};
use rdzv_rendezvous::{GroupEvent, NodeState, RendezvousEvent};
use rustix::process::{Signal, getpid};
use tokio::time::sleep;
use tracing::{info, warn};

use super::AgentLoop;
use crate::clock::or_forever;
use crate::keeper::{is_kept, kept};
use crate::reap::signal_below;
use crate::supervisor::Supervisor;
use crate::{AgentConfig, RendezvousPlan};

/// The time for which workers stand still before they are killed, if nothing is configured.
const KILL_AFTER: Duration = Duration::from_secs(60);

/// The time for which workers stand still before they are killed.
pub(super) fn kill_after(config: &AgentConfig) -> Duration {
    let RendezvousPlan::Dynamic { parameters } = &config.rendezvous.plan else {
        return KILL_AFTER;
    };
    // A value that is none is told of when the agent joins.
    let given = parameters.config.get_as_int("fence_kill");
    let seconds = given.ok().flatten().and_then(|it| u64::try_from(it).ok());
    seconds.map_or(KILL_AFTER, Duration::from_secs)
}

/// Waits until the clock of leases shows this.
pub(super) async fn due(deadline: Option<Mono>) {
    or_forever(deadline.map(|at| sleep(at.since(fence::now().mono)))).await;
}

impl<S: Supervisor> AgentLoop<'_, S> {
    /// Tells the fence of something, and does what it wants at once.
    pub(super) fn fence(&mut self, input: Input) {
        self.fence.handle(fence::now(), input);
        self.note_lease();
        while let Some(output) = self.fence.poll_output() {
            match output {
                Output::Stop => {
                    self.supervisor.suspend();
                    self.signal_others(Signal::STOP);
                    self.stands_since = self.fence.stands_since();
                    let message = "workers are suspended: no message of a coordinator with a majority came in time";
                    self.say_of_fence(message.to_owned(), GroupEvent::Fenced);
                }
                Output::Continue(stood) => {
                    // Limits of workers do not count the time in which they could do nothing.
                    self.clock.leave_out(stood);
                    self.supervisor.resume();
                    self.signal_others(Signal::CONT);
                    self.stands_since = None;
                    let message = format!(
                        "workers continue after {:.1} s: their round holds",
                        stood.as_secs_f64()
                    );
                    let killed = false;
                    self.say_of_fence(message, GroupEvent::Unfenced { stood, killed });
                }
                Output::Kill => self.kill_fenced(),
                Output::GiveUp(stood) => {
                    let reason = format!(
                        "no coordinator with a majority for {:.0} s (fence_kill)",
                        stood.as_secs_f64()
                    );
                    if let Some(round) = self.round {
                        let now = self.clock.now().wall;
                        let cause = self.failures.membership_changed(now, &reason);
                        self.inputs.push_back(GroupInput::MembershipChanged {
                            round,
                            cause,
                            reason,
                        });
                    }
                    self.kill_fenced();
                }
            }
        }
    }

    /// Logs that rounds have a fence from here on, or none any more.
    ///
    /// The first round with a fence is no news for the screen.
    pub(super) fn say_fence(&mut self, acts: bool) {
        let was = self.has_fence;
        if acts == was.unwrap_or(false) {
            return;
        }
        self.has_fence = Some(acts);
        let role = &self.config.identity.role;
        let message = if acts {
            "the fence is on: workers are suspended when this node is cut off"
        } else {
            "the fence is off, with fewer than three voters or a node without a fence: workers run on when this node is cut off"
        };
        if was.is_some() {
            warn!("[{role}] {message}");
        } else {
            info!("[{role}] {message}");
        }
        let event = RendezvousEvent::new(NodeState::Running, message);
        self.emit_recorded(event.about(GroupEvent::Fence { acts }));
    }

    /// The guard knows until when workers may run, in case this process is stopped then.
    fn note_lease(&mut self) {
        let until = self.fence.lease_until();
        if until != self.noted_lease
            && let Some(kept) = kept()
        {
            let millis = until.map_or(0, |until| until.since(Mono::ZERO).as_millis());
            kept.update_note(|note| note.lease_until = u64::try_from(millis).unwrap_or(u64::MAX));
        }
        self.noted_lease = until;
        if let RendezvousPlan::Dynamic { parameters } = &self.config.rendezvous.plan
            && let Some(group) = &parameters.group
        {
            group.lease(until, self.fence.is_closed());
        }
    }

    /// This process goes on. If it was stopped, the guard may have stopped its workers.
    pub(super) fn continued(&mut self) {
        if self.fence.lease_until().is_some() {
            self.fence(Input::Continued);
            if !self.fence.is_closed() {
                self.supervisor.resume();
                self.signal_others(Signal::CONT);
            }
        }
    }

    /// Processes that workers have started may be in other groups than theirs. They are below this process, if this is the agent
    /// and not a part of somebody's program.
    fn signal_others(&self, signal: Signal) {
        if is_kept() {
            signal_below(getpid(), signal);
        }
    }

    /// Their grace is over: the others go on without them.
    fn kill_fenced(&mut self) {
        if let Some(since) = self.stands_since.take() {
            let stood = fence::now().mono.since(since);
            let message = format!(
                "workers that were suspended for {:.1} s are killed: their round is over",
                stood.as_secs_f64()
            );
            let killed = true;
            self.say_of_fence(message, GroupEvent::Unfenced { stood, killed });
        }
        let workers = self.supervisor.workers();
        let workers: Vec<_> = workers.iter().map(|worker| worker.local_rank).collect();
        let kill = Signal::KILL.as_raw();
        let events = self
            .supervisor
            .signal(self.clock, &workers, kill, Duration::ZERO);
        self.take(events);
    }

    fn say_of_fence(&mut self, message: String, event: GroupEvent) {
        warn!("[{}] {message}", self.config.identity.role);
        self.emit_recorded(RendezvousEvent::new(NodeState::Running, message).about(event));
    }
}
