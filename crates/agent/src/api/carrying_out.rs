//! What the machine decides, carried out for a supervisor's workers; and the end of such a run.

use std::time::Duration;

use rdzv_agent_proto::group::{Ending, GroupInput, GroupOutput, Round, WorkerRanks};
use rdzv_core::machine::Machine;
use rdzv_rendezvous::Change;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::driving::Driving;
use super::telling::heard;
use super::{RunError, RunResult, StartRequest};
use crate::effects::identity;
use crate::meeting::{Answer, Joined, Parting};
use crate::{AgentError, AgentEvent, Exit};

/// What workers that are no longer needed are asked to end by: SIGTERM.
const CLOSING_SIGNAL: i32 = 15;

/// How long the end of the run may take to be settled with the others; backends end sooner.
const CLOSING: Duration = Duration::from_secs(60);

impl Driving<'_> {
    pub(super) fn carry_out(&mut self, output: GroupOutput) {
        match output {
            GroupOutput::Join { restart_count } => {
                let now = self.clock.now();
                self.step_began = now.mono;
                self.emit(&AgentEvent::RendezvousBegan {
                    at: now.wall,
                    restart_count,
                });
                self.meeting.join();
            }
            GroupOutput::PurgeStore => self.meeting.purge(),
            GroupOutput::Assign(round) => {
                self.step_began = self.clock.now().mono;
                self.meeting.assign(&round);
            }
            GroupOutput::Assigned {
                workers,
                round,
                restart_count,
            } => self.assigned(&workers, round, restart_count),
            GroupOutput::Start {
                worker,
                environment,
                restart_count,
            } => self.want(StartRequest {
                place: worker,
                environment,
                restart_count,
            }),
            GroupOutput::Announce(_) => self.tell_others(),
            GroupOutput::Unhealthy { last, .. } => {
                if last {
                    self.tell_others();
                }
            }
            GroupOutput::Signal { signal, .. } => {
                let deadline = self.machine.deadline();
                let now = self.clock.now().mono;
                let grace = deadline.map_or(Duration::ZERO, |deadline| deadline.since(now));
                self.stop(signal, grace);
            }
            GroupOutput::ClearLeftovers => self.answers.push_back(GroupInput::Cleared),
            GroupOutput::Restarting { remaining, most } => {
                let role = self.spec.role();
                info!(
                    "[{role}] Worker group FAILED. {remaining}/{most} attempts left; will restart \
                     worker group"
                );
                self.emit(&AgentEvent::Restarting {
                    at: self.clock.now().wall,
                    remaining,
                    most,
                });
            }
            GroupOutput::Regrouping { reason } => {
                warn!("[{}] {reason}; will join the next round", self.spec.role());
                self.emit(&AgentEvent::Regrouping {
                    at: self.clock.now().wall,
                    reason,
                });
            }
            GroupOutput::ExitBarrier { agents } => self.meeting.wait_for_others(agents),
            GroupOutput::Finish(ending) => self.ending = Some(ending),
            // What the supervisor was told to stop is gone when it returns.
            GroupOutput::Kill { .. }
            | GroupOutput::Abandon { .. }
            | GroupOutput::AbandonLeftovers
            | GroupOutput::FirstFailure(_) => {}
        }
    }

    fn assigned(&mut self, workers: &[WorkerRanks], round: Round, restart_count: u32) {
        let now = self.clock.now();
        self.emit(&AgentEvent::RanksAssigned {
            at: now.wall,
            took: now.mono.since(self.step_began),
            round: round.number,
            group_rank: round.group_rank,
            group_world_size: round.group_world_size,
            workers: workers.iter().map(|place| identity(place, 0)).collect(),
            master_addr: round.master.addr,
            master_port: round.master.port,
            restart_count,
        });
    }

    /// An answer of the meeting, for the machine.
    pub(super) fn arrived(&mut self, answer: Answer) -> Option<GroupInput> {
        let now = self.clock.now();
        Some(match answer {
            Answer::Joined(joined) => {
                self.emit(&AgentEvent::Rendezvous {
                    at: now.wall,
                    took: now.mono.since(self.step_began),
                    result: match &joined {
                        Ok(Joined { round, .. }) => Ok((round.group_rank, round.group_world_size)),
                        Err(error) => Err(error.to_string()),
                    },
                    restart_count: self.machine.restart_count(),
                });
                match joined {
                    Ok(joined) => GroupInput::Joined(self.meeting.joined(joined)),
                    Err(error) => self.broken(error.into()),
                }
            }
            Answer::NotNeeded(reason) => {
                warn!("[{}] {reason}", self.spec.role());
                GroupInput::NotNeeded
            }
            Answer::Assigned { join, .. } if !self.meeting.is_current(join) => return None,
            Answer::Assigned { result, .. } => match result {
                Ok(assignment) => GroupInput::Assigned(assignment),
                Err(error) => self.broken(error.into()),
            },
            Answer::Changed(change) => self.changed(change),
            Answer::BarrierPassed(passed) => {
                if let Err(error) = passed {
                    // The workers have succeeded whatever became of the others.
                    error!("Error waiting on exit barrier. {error}");
                }
                GroupInput::BarrierPassed
            }
            Answer::Told(signal) => {
                warn!("told to stop by signal {signal}, shutting down workers");
                self.emit(&AgentEvent::SignalReceived {
                    at: now.wall,
                    signal,
                });
                GroupInput::Signal(signal)
            }
        })
    }

    fn changed(&mut self, change: Change) -> GroupInput {
        match change {
            Change::Membership { round, reason } => GroupInput::MembershipChanged { round, reason },
            Change::PeerFailed { node, reason } => {
                let reason = heard(&reason);
                error!("node {node} has failed for good: {reason}");
                GroupInput::PeerFailed { node, reason }
            }
            Change::Closed => GroupInput::RunClosed,
            Change::Lost(error) => {
                let _ = self.broken(AgentError::from(error).into());
                GroupInput::RendezvousLost
            }
        }
    }

    fn tell_others(&mut self) {
        self.others_told = true;
        self.meeting.tell_others(self.told());
    }

    /// Ends the run: nothing is left of the workers, whatever their supervisor believes.
    pub(super) fn end(&mut self, ending: Ending) -> Result<RunResult, RunError> {
        let signal = match &ending {
            Ending::Signalled { signal, .. } => *signal,
            _ => CLOSING_SIGNAL,
        };
        self.supervisor.shutdown(signal, self.spec.shutdown_timeout);
        let parting = self.parting(&ending);
        if let Some(left) = self.meeting.leave(parting) {
            let done = self
                .runtime
                .block_on(async { timeout(CLOSING, left).await });
            if done.is_err() {
                let limit = CLOSING.as_secs();
                warn!("the rendezvous did not let go of this node within {limit} s");
            }
        }
        let result = self.result(ending);
        if let Ok(result) = &result {
            self.emit_finals(result);
        }
        let now = self.clock.now();
        let raw_error = result.as_ref().err().map(ToString::to_string);
        self.emit(&AgentEvent::AgentFinal {
            at: now.wall,
            state: if raw_error.is_none() {
                "SUCCEEDED"
            } else {
                "FAILED"
            },
            took: now.mono.since(rdzv_core::time::Mono::ZERO),
            workers_succeeded: result.as_ref().is_ok_and(|result| !result.is_failed()),
            raw_error,
        });
        result
    }

    /// One event per worker: how the run ended for it.
    fn emit_finals(&self, result: &RunResult) {
        for worker in &self.attempt {
            let failure = result.failures.get(&worker.rank);
            let (state, exit) = match failure {
                Some(failure) => ("FAILED", Some(failure.exit)),
                None if result.is_failed() => ("TERMINATED", None),
                None => ("SUCCEEDED", Some(Exit::Code(0))),
            };
            self.emit(&AgentEvent::WorkerFinal {
                at: self.clock.now().wall,
                worker: worker.clone(),
                state,
                exit,
                cause: failure.map(|failure| failure.cause.clone()),
                raw_error: None,
            });
        }
    }

    fn parting(&self, ending: &Ending) -> Parting {
        let failed = |reason: String| Parting::Failed {
            reason: (!self.others_told).then_some(reason),
        };
        match ending {
            Ending::Succeeded { .. } => Parting::Succeeded,
            Ending::Failed { .. } => failed(self.told()),
            Ending::PeerFailed { .. } | Ending::RunClosed => Parting::Failed { reason: None },
            Ending::Devices(text) => failed(text.clone()),
            // Who could not join, or has lost what the others meet at, does not speak for them.
            Ending::Broken => match &self.error {
                None => Parting::Left,
                Some(RunError::Agent(error)) if matches!(**error, AgentError::Rendezvous(_)) => {
                    Parting::Left
                }
                Some(error) => failed(error.to_string()),
            },
            Ending::SucceededAlone { .. }
            | Ending::Signalled { .. }
            | Ending::NotNeeded
            | Ending::KeeperLost => Parting::Left,
        }
    }

    fn result(&mut self, ending: Ending) -> Result<RunResult, RunError> {
        Err(match ending {
            Ending::Succeeded { .. } | Ending::SucceededAlone { .. } | Ending::NotNeeded => {
                return Ok(RunResult::succeeded(std::mem::take(&mut self.returned)));
            }
            Ending::Failed { .. } => {
                return Ok(RunResult::failed(std::mem::take(&mut self.failures)));
            }
            Ending::Signalled {
                signal,
                workers_started,
            } => RunError::Signalled {
                signal,
                workers_started,
            },
            Ending::PeerFailed { node, reason } => AgentError::PeerFailed { node, reason }.into(),
            Ending::RunClosed => AgentError::RunClosed {
                run_id: self.spec.run_id().to_string(),
            }
            .into(),
            Ending::KeeperLost => AgentError::KeeperLost.into(),
            Ending::Devices(text) => AgentError::Plan(text).into(),
            Ending::Broken => self
                .error
                .take()
                .expect("`broken` keeps the error before it tells the machine"),
        })
    }
}
