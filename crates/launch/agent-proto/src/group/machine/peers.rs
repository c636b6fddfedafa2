//! Reactions of the worker group to events at other nodes.
//!
//! | event | workers run | stopping, restarts left | last failure, unannounced | exit barrier |
//! |---|---|---|---|---|
//! | membership changed | stop, join again | no effect | after a loss: join again | see below |
//! | a peer failed | stop, end | end with the peer's failure | end with own failure | end |
//! | run closed | stop, end | end with own failure | end with own failure | end within 5 s |
//! | rendezvous lost | stop, end | end with the loss | end with own failure | ignored |
//!
//! After the failure of a peer or the loss of the rendezvous, the group first determines whether
//! its own failure is final. Then it records that the others have ended, because that record makes
//! every failure final. A peer's reason that arrives after the run was closed counts as if it had
//! arrived first.
//!
//! A node at the exit barrier joins again if another node restarts its workers or waits to join:
//! the workers of all nodes restart together, as those of one node do. With `joins_again` off, the
//! node ends with success instead. After a loss, the coordinator answers each node that waits at
//! its barrier: another node joins, or none is left to wait for. If the rendezvous does not provide
//! the barrier, the last of two nodes ends with success, and a node of a larger round joins again.
//!
//! All nodes share one restart budget: a restart that another node has used for its failure is no
//! longer available here. Each node has a separate budget if workers recover in their processes,
//! and in a rendezvous without rdzv's coordinator: static, at a PyTorch store, in a file or in
//! etcd. Agents of torchrun count only their own restarts. No other change of membership costs a
//! restart.

use super::phase::{Phase, StopReason};
use super::{GroupEnding, GroupOutput, WorkerExit, WorkerGroupMachine};
use crate::group::membership;
use crate::group::policy::{BARRIER_AFTER_CLOSE, EXPLAINED_WITHIN};
use crate::group::types::MembershipCause;
use rdzv_core::time::{Mono, Now};

#[derive(Debug, Default)]
pub(super) struct Others {
    /// The last superseded round, the change and the reason.
    /// The notice may arrive before this node knows the round.
    superseded: Option<(u64, MembershipCause, String)>,
    /// The last round that this node has entered.
    entered: Option<u64>,
    /// Time at which this node knows the losses of other nodes.
    /// It is in the past, unless the coordinator is missing or was replaced.
    losses_known_at: Mono,
    /// Last failure, and the time at which it becomes final.
    /// Until then, the loss of a node may explain the failure.
    unexplained: Option<(Mono, WorkerExit)>,
    ended: bool,
    /// Time at which the group stops waiting at the exit barrier.
    barrier_deadline: Option<Mono>,
}

impl Others {
    /// Returns the reason why a round is superseded; `None` if it is not.
    pub(super) fn superseded(&self, round: u64) -> Option<(MembershipCause, String)> {
        self.superseded
            .as_ref()
            .filter(|(superseded, ..)| *superseded >= round)
            .map(|(_, cause, reason)| (*cause, reason.clone()))
    }

    pub(super) fn enter(&mut self, round: u64) {
        self.entered = Some(round);
        self.losses_known_at = Mono::ZERO;
    }

    /// Handles a report of the time at which losses become known.
    pub(super) fn know_losses(&mut self, at: Mono) {
        self.losses_known_at = at;
    }

    /// Returns the time at which no loss can explain a failure any more.
    /// Without a change of coordinators, it is `deadline`.
    pub(super) fn explained_at(&self, deadline: Mono) -> Mono {
        deadline.max(self.losses_known_at)
    }

    /// `true` if this node knows nothing about a round.
    /// It has not entered that round, and has no notice that the round is over.
    fn is_unknown(&self, round: u64) -> bool {
        let superseded = self.superseded.as_ref().map(|(round, ..)| *round);
        self.entered
            .max(superseded)
            .is_none_or(|known| known < round)
    }

    /// `true` if the loss of a node may still explain the last failure.
    pub(super) fn may_explain(&self) -> bool {
        self.unexplained.is_some()
    }

    pub(super) fn have_ended(&self) -> bool {
        self.ended
    }

    /// Begins the exit barrier, with a deadline if the others have ended.
    pub(super) fn at_barrier(&mut self, now: Now) {
        self.barrier_deadline = self.ended.then(|| now.mono + BARRIER_AFTER_CLOSE);
    }

    pub(super) fn forget_deadlines(&mut self) {
        self.unexplained = None;
        self.barrier_deadline = None;
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let unexplained = self.unexplained;
        let unexplained = unexplained.map(|(deadline, _)| self.explained_at(deadline));
        unexplained.into_iter().chain(self.barrier_deadline).min()
    }
}

impl WorkerGroupMachine {
    /// Handles a worker's failure when no restart is left.
    /// In a dynamic round of several nodes, the group waits before it announces the failure. It
    /// does not announce the failure if the loss or failure of another node, the end of the run or
    /// the loss of the rendezvous arrives first.
    pub(super) fn last_failure(&mut self, now: Now, failure: WorkerExit) {
        let alone = self
            .round
            .as_ref()
            .is_none_or(|round| round.group_world_size == 1);
        if alone || !self.spec.dynamic {
            // No other node exists, or a static run cannot continue without a lost node.
            self.announce(failure);
        } else {
            let within = self.round.as_ref().map(|round| round.losses_known_within);
            let deadline = now.mono + within.unwrap_or(EXPLAINED_WITHIN);
            self.others.unexplained = Some((deadline, failure));
        }
    }

    /// Announces a final failure to the other nodes, if there can be any.
    pub(super) fn announce(&mut self, failure: WorkerExit) {
        let several = self
            .round
            .as_ref()
            .is_some_and(|round| round.group_world_size > 1);
        if self.spec.dynamic || several {
            self.outbox.push(GroupOutput::Announce(failure));
        }
    }

    /// Announces the last failure as this node's own.
    /// Later events at other nodes do not change that.
    pub(super) fn announce_last_failure(&mut self) {
        if let Some((_, failure)) = self.others.unexplained.take() {
            self.outbox.push(GroupOutput::Announce(failure));
        }
    }

    /// Joins the next round; no worker is running its function.
    pub(super) fn regroup(&mut self, reason: String) {
        self.outbox.push(GroupOutput::Regrouping { reason });
        self.join();
    }

    pub(super) fn membership_changed(
        &mut self,
        now: Now,
        round: u64,
        cause: MembershipCause,
        reason: String,
    ) {
        if self.round.as_ref().is_some_and(|own| own.number > round) {
            return;
        }
        // Only a loss elsewhere explains a failure here. A node that restarts may itself have
        // failed because of this node.
        let explained = cause == MembershipCause::Lost && self.others.unexplained.take().is_some();
        // The other node's restart costs one restart, except with `--in-process`, at the barrier of
        // a node that does not join again, or once this node is leaving or has left that round.
        let costs = cause == MembershipCause::Restarted
            && self.spec.abort_timeout.is_none()
            && match &self.phase {
                Phase::New | Phase::Joining => self.others.is_unknown(round),
                Phase::Assigning | Phase::Starting { .. } | Phase::Healthy => true,
                Phase::Barrier | Phase::Clearing { then: None, .. } => self.spec.joins_again,
                _ => false,
            };
        if costs {
            self.budget.taken_elsewhere();
        }
        match &mut self.phase {
            Phase::New | Phase::Joining | Phase::Clearing { then: None, .. } => {
                self.others.superseded = Some((round, cause, reason));
            }
            Phase::AwaitingExplanation if !explained => {}
            Phase::Assigning | Phase::AwaitingExplanation => self.regroup(reason),
            Phase::Starting { .. } | Phase::Healthy => {
                self.outbox.push(GroupOutput::Regrouping {
                    reason: reason.clone(),
                });
                self.recover(now, StopReason::MembershipChanged { reason });
            }
            Phase::Stopping { why, .. }
            | Phase::Clearing {
                then: Some(why), ..
            } if explained => {
                *why = StopReason::MembershipChanged {
                    reason: reason.clone(),
                };
                self.outbox.push(GroupOutput::Regrouping { reason });
            }
            Phase::Barrier => self.after_success(now, cause, reason),
            Phase::Recovering { .. }
            | Phase::Stopping { .. }
            | Phase::Clearing { .. }
            | Phase::Delayed { .. }
            | Phase::Over(_) => {}
        }
    }

    /// Handles the end of a round whose workers on this node succeeded.
    pub(super) fn after_success(&mut self, now: Now, cause: MembershipCause, reason: String) {
        let round = self.round.as_ref();
        let (agents, answers) = round.map_or((1, false), |round| {
            (round.group_world_size, round.answers_barrier)
        });
        match cause {
            _ if !self.spec.joins_again => self.succeed_alone(reason),
            MembershipCause::Restarted | MembershipCause::Waiting => self.regroup(reason),
            MembershipCause::Lost if answers && !membership::is_final(&reason) => {
                if !matches!(self.phase, Phase::Barrier) {
                    self.enter_barrier(now, agents);
                }
            }
            MembershipCause::Lost if !answers && agents > 2 => self.regroup(reason),
            MembershipCause::Lost => self.succeed_alone(reason),
        }
    }

    pub(super) fn enter_barrier(&mut self, now: Now, agents: u32) {
        self.phase = Phase::Barrier;
        self.others.at_barrier(now);
        self.outbox.push(GroupOutput::ExitBarrier { agents });
    }

    /// Returns the reason why the current round is over, if this node knows one.
    pub(super) fn round_is_over(&self) -> Option<(MembershipCause, String)> {
        let round = self.round.as_ref()?;
        self.others.superseded(round.number)
    }

    pub(super) fn peer_failed(&mut self, now: Now, node: String, reason: String) {
        self.others.unexplained = None;
        let why = StopReason::PeerFailed { node, reason };
        self.close(now, why);
        self.others.ended = true;
    }

    pub(super) fn run_closed(&mut self, now: Now) {
        self.others.ended = true;
        self.others.unexplained = None;
        match self.phase {
            // To a node that joins, the rendezvous gives a more precise answer.
            Phase::New | Phase::Joining | Phase::Clearing { then: None, .. } => {}
            Phase::Barrier => self.others.at_barrier(now),
            _ => self.close(now, StopReason::RunClosed),
        }
    }

    pub(super) fn rendezvous_lost(&mut self, now: Now) {
        self.others.unexplained = None;
        match self.phase {
            // The workers have succeeded; the barrier ends together with its store.
            Phase::Barrier | Phase::Clearing { then: None, .. } => {}
            _ => self.close(now, StopReason::Broken),
        }
        self.others.ended = true;
    }

    /// Ends the expired waits for other nodes.
    pub(super) fn expire_others(&mut self, now: Now) {
        if self
            .others
            .unexplained
            .is_some_and(|(deadline, _)| self.others.explained_at(deadline) <= now.mono)
        {
            self.announce_last_failure();
            if matches!(self.phase, Phase::AwaitingExplanation) {
                self.finish_stopped(StopReason::WorkersFailed);
            }
        }
        if self
            .others
            .barrier_deadline
            .is_some_and(|deadline| deadline <= now.mono)
        {
            self.finish(GroupEnding::RunClosed);
        }
    }
}
