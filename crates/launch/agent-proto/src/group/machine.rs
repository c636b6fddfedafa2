//! State machine of one agent's worker group.
//!
//! The machine joins rounds, starts, watches, stops and restarts the workers, and ends the run.

mod peers;
mod phase;
mod recovery;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use peers::Others;
use phase::{Phase, StopReason, ending, overrule};
use recovery::Recovery;

use super::awaited::{Awaited, StopStep};
use super::environment;
use super::options::{GroupSpec, RecoveryRule};
use super::policy::{RestartBudget, StopRequests, TIMEOUT_WITHOUT_KEEPER};
use super::types::{
    GroupEnding, GroupInput, GroupOutput, GroupState, Round, StartRequest, WorkerRanks,
};
use super::{Finality, WorkerExit};
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::rank::{Assignment, LocalRank};
use rdzv_core::time::{Mono, Now};

/// The default closing signal: SIGTERM.
const CLOSING_SIGNAL: i32 = 15;

/// Time that the group waits for a process after SIGKILL.
/// Only a process that the kernel or a debugger holds takes that long.
const ABANDON_AFTER: Duration = Duration::from_secs(10);

/// The worker group of one agent.
/// [The module](super) has a diagram of its states.
#[derive(Debug)]
pub struct WorkerGroupMachine {
    spec: GroupSpec,
    budget: RestartBudget,
    requests: StopRequests,
    phase: Phase,
    round: Option<Round>,
    others: Others,
    alive: BTreeSet<LocalRank>,
    /// All workers of this attempt that were started.
    started: BTreeSet<LocalRank>,
    /// Exits of this attempt in the order in which the agent saw them.
    exits: Vec<WorkerExit>,
    /// Workers of this attempt that the agent found to hang.
    unhealthy: Vec<LocalRank>,
    recovery: Recovery,
    /// `true` once this agent has started a worker.
    ever_started: bool,
    outbox: Outbox<GroupOutput>,
}

impl WorkerGroupMachine {
    /// Creates a group that waits for [`GroupInput::Begin`].
    pub fn new(spec: GroupSpec) -> Self {
        Self {
            budget: RestartBudget::new(spec.restarts.max_restarts, spec.restarts_used),
            spec,
            requests: StopRequests::default(),
            phase: Phase::New,
            round: None,
            others: Others::default(),
            alive: BTreeSet::new(),
            started: BTreeSet::new(),
            exits: Vec::new(),
            unhealthy: Vec::new(),
            recovery: Recovery::default(),
            ever_started: false,
            outbox: Outbox::default(),
        }
    }

    /// Returns the state in torchelastic's terms.
    pub fn state(&self) -> GroupState {
        match self.phase {
            Phase::Stopping {
                why: StopReason::WorkersFailed,
                ..
            } if !self.unhealthy.is_empty() => GroupState::Unhealthy,
            _ => self.phase.state(),
        }
    }

    /// Returns the event that the group waits for.
    /// `None` in all other phases, for example while workers run, or while the group waits for
    /// other nodes to join or to explain a failure.
    pub fn awaits(&self) -> Option<Awaited> {
        Some(match &self.phase {
            Phase::Recovering { deadline, step, .. } => Awaited::Workers {
                workers: self.not_ready(),
                deadline: *deadline,
                step: *step,
            },
            Phase::Stopping { deadline, step, .. } => Awaited::Workers {
                workers: self.alive.iter().copied().collect(),
                deadline: *deadline,
                step: *step,
            },
            Phase::Clearing { .. } => Awaited::Leftovers,
            Phase::Delayed { deadline } => Awaited::Delay {
                deadline: *deadline,
            },
            Phase::Barrier => Awaited::OtherNodes,
            _ => return None,
        })
    }

    /// Number of restarts that this node has used.
    pub fn restart_count(&self) -> u32 {
        self.budget.used()
    }

    /// Number of restarts that all nodes have used, as far as this node knows.
    pub fn job_restarts(&self) -> u32 {
        self.budget.used_by_job()
    }

    fn exited(&mut self, now: Now, exits: Vec<WorkerExit>) {
        for exit in exits {
            self.alive.remove(&exit.local_rank);
            if self.spec.rules.has(RecoveryRule::ExitIsForgotten) {
                self.recovery.exited(exit.local_rank);
            }
            self.exits.push(exit);
        }
        self.check_exits(now);
    }

    fn check_exits(&mut self, now: Now) {
        match self.phase {
            Phase::Starting { .. } | Phase::Healthy => {
                let failure = self.exits.iter().find(|exit| !exit.exit.is_success());
                if let Some(failure) = failure.copied() {
                    self.outbox.push(GroupOutput::FirstFailure(failure));
                    if self.beyond_help().is_some() {
                        self.announce(failure);
                    } else if self.budget.remaining() == 0 {
                        self.last_failure(now, failure);
                    }
                    if self.may_restart() {
                        self.recover(now, StopReason::WorkersFailed);
                    } else {
                        self.stop_workers(now, StopReason::WorkersFailed);
                    }
                } else if self.alive.is_empty() && matches!(self.phase, Phase::Healthy) {
                    self.clear(now, None);
                }
            }
            Phase::Stopping { ref why, .. } if self.alive.is_empty() => {
                let then = Some(why.clone());
                self.clear(now, then);
            }
            Phase::Recovering { .. } => self.check_ready(now),
            Phase::Joining | Phase::Assigning | Phase::Delayed { .. } => self.replace_exited(),
            _ => {}
        }
    }

    /// Handles a report that workers hang, ignoring workers that have exited.
    fn hang(&mut self, now: Now, mut workers: Vec<LocalRank>, is_final: Option<Finality>) {
        workers.retain(|worker| self.alive.contains(worker));
        if workers.is_empty() {
            return;
        }
        if let Some(reason) = is_final {
            self.budget.forfeit(reason);
        }
        self.unhealthy.clone_from(&workers);
        self.outbox.push(GroupOutput::Unhealthy {
            workers,
            last: !self.may_restart(),
        });
        self.stop_workers(now, StopReason::WorkersFailed);
    }

    /// Stops the workers with SIGTERM and the full shutdown timeout.
    fn stop_workers(&mut self, now: Now, why: StopReason) {
        self.stop(now, why, CLOSING_SIGNAL, self.spec.stop.shutdown_timeout);
    }

    fn stop(&mut self, now: Now, why: StopReason, signal: i32, shutdown_timeout: Duration) {
        if self.alive.is_empty() {
            return self.clear(now, Some(why));
        }
        self.outbox.push(GroupOutput::Signal {
            workers: self.started.iter().copied().collect(),
            signal,
        });
        self.phase = Phase::Stopping {
            why,
            signal,
            deadline: now.mono + shutdown_timeout,
            step: StopStep::Signal,
        };
        self.expire(now);
    }

    /// Handles the notice that the scheduler will take the node away.
    /// The group notifies the running workers, which can exit on their own within the plan's time.
    /// No further attempt follows. After the success of its workers, the group ignores the notice.
    fn preempted(&mut self, now: Now, signal: i32) {
        let failure = self.finality();
        let why = StopReason::Preempted(signal);
        match self.phase {
            Phase::Starting { .. } | Phase::Healthy => {
                self.outbox.push(GroupOutput::Notify {
                    workers: self.started.iter().copied().collect(),
                    signal,
                });
                let notice = self.spec.preemption.as_ref();
                self.phase = Phase::Stopping {
                    why,
                    signal,
                    deadline: now.mono
                        + notice.map_or(Duration::ZERO, |notice| notice.shutdown_timeout),
                    step: StopStep::Notice,
                };
                self.check_exits(now);
            }
            Phase::Stopping {
                why: ref mut current,
                ..
            }
            | Phase::Clearing {
                then: Some(ref mut current),
                ..
            } => overrule(current, why, failure),
            // The work is done.
            Phase::Clearing { then: None, .. } | Phase::Barrier | Phase::Over(_) => {}
            _ => {
                let shutdown_timeout = self.spec.stop.shutdown_timeout;
                self.request_stop(now, why, signal, shutdown_timeout);
            }
        }
    }

    /// Handles another reason to stop while the group is stopping.
    /// The remaining time can only get shorter.
    fn stop_sooner(
        &mut self,
        now: Now,
        again: StopReason,
        signal: i32,
        shutdown_timeout: Duration,
    ) {
        let failure = self.finality();
        let Phase::Stopping {
            ref mut why,
            signal: ref mut current,
            ref mut deadline,
            ref mut step,
        } = self.phase
        else {
            return;
        };
        let is_told_to = matches!(again, StopReason::Signalled(_) | StopReason::KeeperLost);
        overrule(why, again, failure);
        // Only a signal or the loss of the keeper shortens the time after a preemption notice.
        if *step == StopStep::Kill || (*step == StopStep::Notice && !is_told_to) {
            return;
        }
        *deadline = (*deadline).min(now.mono + shutdown_timeout);
        *current = signal;
        *step = StopStep::Signal;
        self.outbox.push(GroupOutput::Signal {
            workers: self.started.iter().copied().collect(),
            signal,
        });
        self.expire(now);
    }

    /// Stops the group with SIGTERM and the full shutdown timeout.
    fn close(&mut self, now: Now, why: StopReason) {
        self.request_stop(now, why, CLOSING_SIGNAL, self.spec.stop.shutdown_timeout);
    }

    fn request_stop(&mut self, now: Now, why: StopReason, signal: i32, shutdown_timeout: Duration) {
        let failure = self.finality();
        self.announce_last_failure();
        match self.phase {
            Phase::New | Phase::Joining | Phase::Assigning | Phase::Delayed { .. }
                if self.alive.is_empty() =>
            {
                self.finish_stopped(why);
            }
            Phase::New
            | Phase::Joining
            | Phase::Assigning
            | Phase::Delayed { .. }
            | Phase::Recovering { .. }
            | Phase::Starting { .. }
            | Phase::Healthy => {
                self.stop(now, why, signal, shutdown_timeout);
            }
            Phase::Stopping { .. } => self.stop_sooner(now, why, signal, shutdown_timeout),
            Phase::Clearing { ref mut then, .. } => match then {
                None => *then = Some(why),
                Some(current) => {
                    overrule(current, why, failure);
                }
            },
            Phase::AwaitingExplanation => {
                let mut reason = StopReason::WorkersFailed;
                overrule(&mut reason, why, failure);
                self.finish_stopped(reason);
            }
            Phase::Barrier => self.finish_stopped(why),
            Phase::Over(_) => {}
        }
    }

    fn clear(&mut self, now: Now, then: Option<StopReason>) {
        self.recovery = Recovery::default();
        self.outbox.push(GroupOutput::ClearLeftovers);
        self.phase = Phase::Clearing {
            then,
            deadline: now.mono + ABANDON_AFTER,
        };
    }

    fn cleared(&mut self, now: Now) {
        let Phase::Clearing { ref then, .. } = self.phase else {
            return;
        };
        match then.clone() {
            None => {
                let agents = self
                    .round
                    .as_ref()
                    .map_or(1, |round| round.group_world_size);
                if agents == 1 {
                    self.succeed();
                } else if let Some((cause, reason)) = self.round_is_over() {
                    self.after_success(now, cause, reason);
                } else {
                    self.enter_barrier(now, agents);
                }
            }
            Some(StopReason::MembershipChanged { .. }) => self.join_after_delay(now),
            Some(StopReason::WorkersFailed) if self.may_restart() && self.budget.take() => {
                self.outbox.push(GroupOutput::Restarting {
                    state: if self.unhealthy.is_empty() {
                        GroupState::Failed
                    } else {
                        GroupState::Unhealthy
                    },
                    remaining: self.budget.remaining(),
                    most: self.budget.most(),
                });
                self.join_after_delay(now);
            }
            Some(StopReason::WorkersFailed) if self.others.may_explain() => {
                self.phase = Phase::AwaitingExplanation;
            }
            Some(why) => self.finish_stopped(why),
        }
    }

    /// `true` if a failure leads to another attempt.
    fn may_restart(&self) -> bool {
        self.finality().is_none()
    }

    /// Returns the reason why no restart follows a worker's failure, if any.
    fn finality(&self) -> Option<Finality> {
        let max_restarts = self.budget.most();
        if let Some(number) = self.beyond_help() {
            Some(Finality::NotRetryable { number })
        } else if let Some(reason) = self.budget.forfeited() {
            Some(reason)
        } else if self.budget.remaining() == 0 {
            Some(Finality::BudgetUsed { max_restarts })
        } else {
            self.others.have_ended().then_some(Finality::RunEnded)
        }
    }

    /// Returns a worker's exit that is not retryable, if any.
    /// The number is an exit code, or minus a signal.
    fn beyond_help(&self) -> Option<i32> {
        let own = self.exits.iter().filter(|ended| !ended.stopped_by_agent);
        own.map(|ended| ended.exit.as_number())
            .find(|number| self.spec.restarts.non_retryable.contains(number))
    }

    /// Joins the next round after the configured delay.
    fn join_after_delay(&mut self, now: Now) {
        if self.spec.restarts.settle_delay.is_zero() {
            return self.join();
        }
        self.phase = Phase::Delayed {
            deadline: now.mono + self.spec.restarts.settle_delay,
        };
    }

    fn finish_stopped(&mut self, why: StopReason) {
        let finality = self.finality();
        let exits = std::mem::take(&mut self.exits);
        let unhealthy = std::mem::take(&mut self.unhealthy);
        self.finish(ending(why, exits, unhealthy, finality, self.ever_started));
    }

    fn succeed(&mut self) {
        let exits = std::mem::take(&mut self.exits);
        self.finish(GroupEnding::Succeeded { exits });
    }

    /// Ends the run with success, although not all nodes reached the exit barrier.
    /// The round is over, or the wait at the barrier reached its limit.
    fn succeed_alone(&mut self, reason: String) {
        let exits = std::mem::take(&mut self.exits);
        self.finish(GroupEnding::SucceededAlone { exits, reason });
    }

    fn finish(&mut self, ending: GroupEnding) {
        self.others.forget_deadlines();
        self.phase = Phase::Over(match ending {
            GroupEnding::Succeeded { .. } | GroupEnding::SucceededAlone { .. } => {
                GroupState::Succeeded
            }
            _ => GroupState::Failed,
        });
        self.outbox.push(GroupOutput::Finish(ending));
    }

    fn expire(&mut self, now: Now) {
        self.expire_others(now);
        self.expire_recovery(now);
        match self.phase {
            Phase::Stopping {
                ref why,
                step: StopStep::Notice,
                deadline,
                ..
            } if deadline <= now.mono => {
                let why = why.clone();
                self.stop_workers(now, why);
            }
            Phase::Stopping {
                ref mut deadline,
                ref mut step,
                ref why,
                ..
            } if *deadline <= now.mono => {
                let workers: Vec<LocalRank> = self.alive.iter().copied().collect();
                if *step == StopStep::Kill {
                    let then = Some(why.clone());
                    self.outbox.push(GroupOutput::Abandon { workers });
                    self.clear(now, then);
                } else {
                    *step = StopStep::Kill;
                    *deadline = now.mono + ABANDON_AFTER;
                    self.outbox.push(GroupOutput::Kill { workers });
                }
            }
            Phase::Clearing { deadline, .. } if deadline <= now.mono => {
                self.outbox.push(GroupOutput::AbandonLeftovers);
                self.cleared(now);
            }
            Phase::Delayed { deadline } if deadline <= now.mono => self.join(),
            _ => {}
        }
    }
}

/// Methods from joining a round until all workers of an attempt run.
impl WorkerGroupMachine {
    fn join(&mut self) {
        self.round = None;
        self.alive.retain(|worker| self.recovery.is_ready(*worker));
        self.started.clone_from(&self.alive);
        self.exits.clear();
        self.unhealthy.clear();
        self.phase = Phase::Joining;
        self.outbox.push(GroupOutput::Join {
            restart_count: self.budget.used(),
        });
    }

    fn joined(&mut self, round: Round) {
        if self.budget.used() > 0 && self.spec.purge_store {
            self.outbox.push(GroupOutput::PurgeStore);
        }
        self.round = Some(round.clone());
        self.others.enter(round.number);
        self.phase = Phase::Assigning;
        match self.others.superseded(round.number) {
            Some((_, reason)) => self.regroup(reason),
            None => self.outbox.push(GroupOutput::Assign(round)),
        }
    }

    fn assigned(&mut self, assignment: Assignment) {
        let round = self
            .round
            .clone()
            .expect("the assigning phase begins with a round");
        let restart_count = self.budget.used();
        let workers = WorkerRanks::of_node(assignment, self.spec.identity.local_world_size);
        let (mut waiting, mut kept) = (VecDeque::new(), Vec::new());
        for ranks in &workers {
            match environment::variables(&self.spec, &round, ranks, restart_count) {
                Ok(environment) => {
                    let request = StartRequest {
                        ranks: *ranks,
                        environment,
                        restart_count,
                    };
                    if self.alive.contains(&ranks.local_rank) {
                        kept.push(request);
                    } else {
                        waiting.push_back(request);
                    }
                }
                Err(text) => return self.finish(GroupEnding::Devices(text)),
            }
        }
        self.outbox.push(GroupOutput::Assigned {
            workers,
            round,
            restart_count,
        });
        if self.spec.rules.has(RecoveryRule::GoEndsReadiness) {
            self.recovery.go();
        }
        for request in kept {
            self.outbox.push(GroupOutput::Go(request));
        }
        self.phase = Phase::Starting { waiting };
        self.start_next();
    }

    fn start_next(&mut self) {
        let Phase::Starting { waiting } = &mut self.phase else {
            return;
        };
        match waiting.pop_front() {
            Some(next) => self.outbox.push(GroupOutput::Start(next)),
            None => self.phase = Phase::Healthy,
        }
    }

    fn started(&mut self, now: Now, local_rank: LocalRank) {
        self.ever_started = true;
        self.started.insert(local_rank);
        self.alive.insert(local_rank);
        match self.phase {
            Phase::Starting { .. } => {
                self.start_next();
                self.check_exits(now);
            }
            // The group was stopped while this worker was starting.
            Phase::Stopping { signal, step, .. } => {
                let workers = vec![local_rank];
                self.outbox.push(match step {
                    StopStep::Kill => GroupOutput::Kill { workers },
                    StopStep::Notice => GroupOutput::Notify { workers, signal },
                    StopStep::Signal | StopStep::Abort => GroupOutput::Signal { workers, signal },
                });
            }
            _ => {}
        }
    }
}

impl Machine for WorkerGroupMachine {
    type Input<'a> = GroupInput;
    type Output = GroupOutput;

    fn handle(&mut self, now: Now, input: GroupInput) {
        self.outbox.assert_drained();
        match (input, &self.phase) {
            (GroupInput::Begin, Phase::New) => self.join(),
            (GroupInput::Joined(round), Phase::Joining) => self.joined(round),
            (GroupInput::Assigned(assignment), Phase::Assigning) => self.assigned(assignment),
            (GroupInput::Started(local_rank), _) => self.started(now, local_rank),
            (GroupInput::Exited(exits), _) => self.exited(now, exits),
            (
                GroupInput::Unhealthy { workers, is_final },
                Phase::Starting { .. } | Phase::Healthy,
            ) => self.hang(now, workers, is_final),
            (GroupInput::Broken, _) => self.close(now, StopReason::Broken),
            (GroupInput::Signal(signal), _) => {
                let whole = self.spec.stop.shutdown_timeout;
                if let Some(shutdown_timeout) = self.requests.timeout_after(now.mono, signal, whole)
                {
                    self.request_stop(now, StopReason::Signalled(signal), signal, shutdown_timeout);
                }
            }
            (GroupInput::Preempted(signal), _) => self.preempted(now, signal),
            (GroupInput::KeeperLost, _) => {
                let shutdown_timeout = self.spec.stop.shutdown_timeout.min(TIMEOUT_WITHOUT_KEEPER);
                self.request_stop(
                    now,
                    StopReason::KeeperLost,
                    CLOSING_SIGNAL,
                    shutdown_timeout,
                );
            }
            (
                GroupInput::MembershipChanged {
                    round,
                    cause,
                    reason,
                },
                _,
            ) => self.membership_changed(now, round, cause, reason),
            (GroupInput::LossesKnownWithin(within), _) => {
                self.others.know_losses(now.mono + within);
            }
            (GroupInput::PeerFailed { node, reason }, _) => self.peer_failed(now, node, reason),
            (GroupInput::RunClosed, _) => self.run_closed(now),
            (GroupInput::RendezvousLost, _) => self.rendezvous_lost(now),
            (GroupInput::Recoverable(worker), _) => self.recovery.connected(worker),
            (GroupInput::Ready(worker), _) => self.ready(now, worker),
            (GroupInput::Raised(worker), _) => self.raised(now, worker),
            (GroupInput::NotNeeded, Phase::Joining) if self.alive.is_empty() => {
                self.finish(GroupEnding::NotNeeded);
            }
            (GroupInput::NotNeeded, Phase::Joining) => self.close(now, StopReason::RunClosed),
            (GroupInput::Cleared, Phase::Clearing { .. }) => self.cleared(now),
            (GroupInput::BarrierPassed, Phase::Barrier) => self.succeed(),
            (GroupInput::BarrierTimeout(reason), Phase::Barrier) => self.succeed_alone(reason),
            (GroupInput::TimePassed, _) => self.expire(now),
            // The phase has changed, so this answer or report no longer matters.
            (
                GroupInput::Begin
                | GroupInput::Joined(_)
                | GroupInput::Assigned(_)
                | GroupInput::NotNeeded
                | GroupInput::Unhealthy { .. }
                | GroupInput::Cleared
                | GroupInput::BarrierPassed
                | GroupInput::BarrierTimeout(_),
                _,
            ) => {}
        }
    }

    fn poll_output(&mut self) -> Option<GroupOutput> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        let own = match self.phase {
            Phase::Recovering { deadline, .. }
            | Phase::Stopping { deadline, .. }
            | Phase::Clearing { deadline, .. }
            | Phase::Delayed { deadline } => Some(deadline),
            Phase::Starting { .. } | Phase::Healthy => {
                let raised = self.recovery.deadline();
                raised.map(|deadline| self.others.explained_at(deadline))
            }
            _ => None,
        };
        own.into_iter().chain(self.others.deadline()).min()
    }
}
