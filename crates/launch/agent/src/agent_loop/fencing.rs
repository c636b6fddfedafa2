//! Fence of this node, which suspends workers while the node has no lease.

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
use crate::AgentConfig;
use crate::clock::or_forever;
use crate::config::RendezvousPlan;
use crate::keeper::{is_kept, kept};
use crate::reap::signal_below;
use crate::supervisor::Supervisor;

/// Default time for which workers are suspended before they are killed.
const KILL_AFTER: Duration = Duration::from_secs(60);

/// Returns the time for which workers are suspended before they are killed.
pub(super) fn kill_after(config: &AgentConfig) -> Duration {
    let RendezvousPlan::Dynamic { parameters } = &config.rendezvous.plan else {
        return KILL_AFTER;
    };
    // The agent reports an invalid value when it joins.
    let given = parameters.config.get_as_int("fence_kill");
    let seconds = given.ok().flatten().and_then(|it| u64::try_from(it).ok());
    seconds.map_or(KILL_AFTER, Duration::from_secs)
}

pub(super) async fn due(deadline: Option<Mono>) {
    or_forever(deadline.map(|at| sleep(at.since(fence::now().mono)))).await;
}

impl<S: Supervisor> AgentLoop<'_, S> {
    /// Passes an input to the fence and applies its outputs immediately.
    pub(super) fn fence(&mut self, input: Input) {
        self.fence.handle(fence::now(), input);
        self.note_lease();
        while let Some(output) = self.fence.poll_output() {
            match output {
                Output::Stop => {
                    self.supervisor.suspend();
                    self.signal_others(Signal::STOP);
                    self.stands_since = self.fence.stands_since();
                    let message = "workers are suspended: no message from a coordinator with a \
                                   majority arrived in time";
                    self.say_of_fence(message.to_owned(), GroupEvent::Fenced);
                }
                Output::Continue(stood) => {
                    // The workers' time limits exclude the time of the suspension.
                    self.clock.leave_out(stood);
                    self.supervisor.resume();
                    self.signal_others(Signal::CONT);
                    self.stands_since = None;
                    let message = format!(
                        "workers resume after {:.1} s: their round is still valid",
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

    /// Logs that rounds now have a fence, or no longer have one.
    ///
    /// The first message, that the fence is on, has the level INFO; later ones are warnings.
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
            "the fence is off, because there are fewer than three voters or a node without a \
             fence: workers keep running when this node is cut off"
        };
        if was.is_some() {
            warn!("[{role}] {message}");
        } else {
            info!("[{role}] {message}");
        }
        let event = RendezvousEvent::new(NodeState::Running, message);
        self.emit_recorded(event.about(GroupEvent::Fence { acts }));
    }

    /// Records the end of the lease for the guard.
    ///
    /// The guard stops the workers if this process is stopped at that time.
    fn note_lease(&mut self) {
        let lease_end = self.fence.lease_end();
        if lease_end != self.noted_lease
            && let Some(kept) = kept()
        {
            let millis = lease_end.map_or(0, |lease_end| lease_end.since(Mono::ZERO).as_millis());
            kept.update_note(|note| note.lease_end = u64::try_from(millis).unwrap_or(u64::MAX));
        }
        self.noted_lease = lease_end;
        if let RendezvousPlan::Dynamic { parameters } = &self.config.rendezvous.plan
            && let Some(group) = &parameters.group
        {
            group.lease(lease_end, self.fence.is_closed());
        }
    }

    /// Handles the continuation of this process after SIGCONT.
    /// If this process was stopped, the guard may have stopped its workers.
    pub(super) fn continued(&mut self) {
        if self.fence.lease_end().is_some() {
            self.fence(Input::Continued);
            if !self.fence.is_closed() {
                self.supervisor.resume();
                self.signal_others(Signal::CONT);
            }
        }
    }

    /// Signals all descendants of this process, whatever their process group.
    /// Does nothing without a keeper: a user's program may have other processes below it.
    fn signal_others(&self, signal: Signal) {
        if is_kept() {
            signal_below(getpid(), signal);
        }
    }

    /// Kills the workers, suspended or not, because this node leaves their round.
    fn kill_fenced(&mut self) {
        if let Some(since) = self.stands_since.take() {
            let stood = fence::now().mono.since(since);
            let message = format!(
                "workers that were suspended for {:.1} s are killed: this node leaves their round",
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
        // Later workers need the processes that were suspended beside these.
        if is_kept() {
            self.supervisor.resume_others();
        }
    }

    fn say_of_fence(&mut self, message: String, event: GroupEvent) {
        warn!("[{}] {message}", self.config.identity.role);
        self.emit_recorded(RendezvousEvent::new(NodeState::Running, message).about(event));
    }
}
