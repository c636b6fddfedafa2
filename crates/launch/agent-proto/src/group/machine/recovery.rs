//! Recovery of workers in their processes (`--in-process`).
//!
//! ```text
//!   HEALTHY ── failure, change of membership ──► recovering ── all ready or exited ──► joining
//!                                                    │ abort timeout: SIGKILL
//!                                                    └──► killed workers are replaced
//! ```
//!
//! A worker that has connected to the control socket can recover: it leaves its function, keeps its
//! process and calls the function again in the next round. Other workers are stopped and replaced.
//! A worker whose function raised an exception is ready too. The reason is often a failure
//! elsewhere, so the group waits for that explanation before the exception counts as a failure of
//! this node.
//!
//! `docs/invariants.md` has the invariants *IP-1* to *IP-4*.

use std::collections::BTreeSet;
use std::time::Duration;

use super::phase::{Phase, StopReason};
use super::{
    ABANDON_AFTER, CLOSING_SIGNAL, GroupOutput, GroupState, RecoveryRule, StopStep,
    WorkerGroupMachine,
};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::{Mono, Now};

/// Time in which another worker's exit explains an exception, on a single node.
const EXPLAINED_HERE: Duration = Duration::from_secs(1);

/// Workers that recover.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    connected: BTreeSet<LocalRank>,
    /// Workers that are outside of their function.
    ready: BTreeSet<LocalRank>,
    /// Worker with the first exception of the round, and its deadline.
    /// After the deadline, the exception counts as a failure of this node.
    raised: Option<(Mono, LocalRank)>,
}

impl Recovery {
    pub(super) fn connected(&mut self, worker: LocalRank) {
        self.connected.insert(worker);
    }

    pub(super) fn exited(&mut self, worker: LocalRank) {
        self.connected.remove(&worker);
        self.ready.remove(&worker);
    }

    pub(super) fn is_ready(&self, worker: LocalRank) -> bool {
        self.ready.contains(&worker)
    }

    /// Begins the next round, in which no worker is ready.
    pub(super) fn go(&mut self) {
        self.ready.clear();
        self.raised = None;
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        self.raised.map(|(deadline, _)| deadline)
    }
}

impl WorkerGroupMachine {
    /// Ends the round; workers that can recover keep their process.
    pub(super) fn recover(&mut self, now: Now, why: StopReason) {
        let (kept, others): (Vec<_>, Vec<_>) = self.alive.iter().partition(|worker| {
            let has_connected = self.recovery.connected.contains(worker);
            has_connected || !self.spec.rules.has(RecoveryRule::OnlyConnectedStay)
        });
        let Some(timeout) = self.spec.abort_timeout.filter(|_| !kept.is_empty()) else {
            return self.stop_workers(now, why);
        };
        let reason = match &why {
            StopReason::MembershipChanged { reason } => reason.clone(),
            _ => "a worker on this node failed".to_owned(),
        };
        self.outbox.push(GroupOutput::Abort {
            workers: kept,
            reason,
        });
        // Workers that are stopped have their whole time too.
        let timeout = if !self.spec.rules.has(RecoveryRule::TimeoutIsKept) {
            Duration::ZERO
        } else if others.is_empty() {
            timeout
        } else {
            timeout.max(self.spec.stop.shutdown_timeout)
        };
        if !others.is_empty() {
            self.outbox.push(GroupOutput::Signal {
                workers: others,
                signal: CLOSING_SIGNAL,
            });
        }
        self.phase = Phase::Recovering {
            why,
            deadline: now.mono + timeout,
            step: StopStep::Abort,
        };
        self.check_ready(now);
    }

    /// Returns the workers that still run their function.
    pub(super) fn not_ready(&self) -> Vec<LocalRank> {
        self.alive
            .difference(&self.recovery.ready)
            .copied()
            .collect()
    }

    pub(super) fn ready(&mut self, now: Now, worker: LocalRank) {
        if self.alive.contains(&worker) {
            self.recovery.ready.insert(worker);
            self.check_ready(now);
        }
    }

    /// Handles an exception of a worker's function.
    pub(super) fn raised(&mut self, now: Now, worker: LocalRank) {
        let several = self.round.as_ref().filter(|it| it.group_world_size > 1);
        let within = several.map_or(EXPLAINED_HERE, |round| round.losses_known_within);
        let due = (now.mono + within, worker);
        self.recovery.raised.get_or_insert(due);
        self.ready(now, worker);
    }

    /// Joins the next round once no worker runs its function.
    /// After a failure without restarts left, stops the workers instead.
    pub(super) fn check_ready(&mut self, now: Now) {
        let Phase::Recovering { ref why, .. } = self.phase else {
            return;
        };
        if !self.not_ready().is_empty() && self.spec.rules.has(RecoveryRule::AllLeave) {
            return;
        }
        if !matches!(why, StopReason::WorkersFailed) {
            self.replace_exited();
            return self.join_after_delay(now);
        }
        if !self.may_restart() || !self.budget.take() {
            return self.stop_workers(now, StopReason::WorkersFailed);
        }
        self.outbox.push(GroupOutput::Restarting {
            state: GroupState::Failed,
            remaining: self.budget.remaining(),
            most: self.budget.most(),
        });
        self.replace_exited();
        self.join_after_delay(now);
    }

    /// Removes what exited workers left behind.
    /// The next round starts other workers in their place.
    pub(super) fn replace_exited(&mut self) {
        let workers: Vec<LocalRank> = self.started.difference(&self.alive).copied().collect();
        self.started.clone_from(&self.alive);
        self.exits.clear();
        if !workers.is_empty() {
            self.outbox.push(GroupOutput::Discard { workers });
        }
    }

    pub(super) fn expire_recovery(&mut self, now: Now) {
        match self.phase {
            Phase::Starting { .. } | Phase::Healthy => {
                let raised = &mut self.recovery.raised;
                let due = raised.take_if(|(due, _)| self.others.explained_at(*due) <= now.mono);
                if let Some((_, worker)) = due {
                    if self.may_restart() {
                        self.recover(now, StopReason::WorkersFailed);
                    } else {
                        self.outbox.push(GroupOutput::Fail(worker));
                    }
                }
            }
            Phase::Recovering {
                ref mut deadline,
                ref mut step,
                ..
            } if *deadline <= now.mono => {
                let again = std::mem::replace(step, StopStep::Kill) == StopStep::Kill;
                *deadline = now.mono + ABANDON_AFTER;
                let workers = self.not_ready();
                if again {
                    for worker in &workers {
                        self.alive.remove(worker);
                        self.recovery.exited(*worker);
                    }
                    self.outbox.push(GroupOutput::Abandon { workers });
                    self.check_ready(now);
                } else {
                    self.outbox.push(GroupOutput::Kill { workers });
                }
            }
            _ => {}
        }
    }
}
