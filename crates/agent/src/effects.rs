//! Carries out what the worker group decides.

use rdzv_core::group::{Ending, Exit, GroupInput, GroupOutput, Round, WorkerExit, WorkerPlace};
use rdzv_core::rank::LocalRank;
use rdzv_rendezvous::Change;
use tracing::{error, info, warn};

use crate::agent::{Agent, Worker};
use crate::meeting::{Answer, Joined};
use crate::{AgentError, AgentEvent, WorkerIdentity, spawn, stop};

impl Agent<'_> {
    pub(crate) fn carry_out(&mut self, output: GroupOutput) {
        match output {
            GroupOutput::Join { .. } => {
                self.workers.clear();
                self.step_began = self.clock.now().mono;
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
            } => {
                let answer = match self.start(&worker, environment, restart_count) {
                    Ok(()) => GroupInput::Started(worker.local_rank),
                    Err(error) => self.broken(error),
                };
                self.answers.push_back(answer);
            }
            GroupOutput::FirstFailure(exit) => self.report_failure(&exit),
            GroupOutput::TellOthers(exit) => self.tell_others(&exit),
            GroupOutput::Regrouping { reason } => self.regrouping(reason),
            GroupOutput::Signal { workers, signal } => self.signal(&workers, signal),
            GroupOutput::Kill { workers } => self.kill(&workers),
            GroupOutput::Abandon { workers } => self.abandon(&workers),
            GroupOutput::ClearLeftovers => {
                self.clearing = true;
                let cleared = self.look_after_orphans();
                self.answers.extend(cleared);
            }
            GroupOutput::AbandonLeftovers => {
                self.cleared();
                error!("processes that workers left behind do not end in spite of SIGKILL");
            }
            GroupOutput::Restarting { remaining, most } => self.restarting(remaining, most),
            GroupOutput::ExitBarrier { agents } => self.meeting.wait_for_others(agents),
            GroupOutput::Finish(ending) => self.finish(ending),
        }
    }

    /// An answer of the meeting, for the machine.
    pub(crate) fn arrived(&mut self, answer: Answer) -> Option<GroupInput> {
        let now = self.clock.now();
        let took = now.mono.since(self.step_began);
        Some(match answer {
            Answer::Joined(joined) => {
                let event = AgentEvent::Rendezvous {
                    at: now.wall,
                    took,
                    result: match &joined {
                        Ok(Joined { round, .. }) => Ok((round.group_rank, round.group_world_size)),
                        Err(error) => Err(error.to_string()),
                    },
                    restart_count: self.group.restart_count(),
                };
                self.emit(event);
                match joined {
                    Ok(joined) => GroupInput::Joined(self.meeting.joined(joined)),
                    Err(error) => self.broken(error),
                }
            }
            Answer::NotNeeded(reason) => {
                warn!("[{}] {reason}", self.plan.role);
                GroupInput::NotNeeded
            }
            // The exchange of a round that was given up meanwhile.
            Answer::Assigned { join, .. } if !self.meeting.is_current(join) => return None,
            Answer::Assigned { result, .. } => match result {
                Ok(assignment) => GroupInput::Assigned(assignment),
                Err(error) => self.broken(error),
            },
            Answer::Changed(change) => self.changed(change),
            Answer::BarrierPassed(passed) => {
                if let Err(error) = passed {
                    // The workers have succeeded whatever became of the others.
                    error!("Error waiting on exit barrier. {error}");
                }
                GroupInput::BarrierPassed
            }
        })
    }

    fn changed(&mut self, change: Change) -> GroupInput {
        match change {
            Change::Membership { round, reason } => GroupInput::MembershipChanged { round, reason },
            Change::PeerFailed { node, reason } => {
                error!("node {node} has failed for good: {reason}");
                GroupInput::PeerFailed { node, reason }
            }
            Change::Closed => GroupInput::RunClosed,
            Change::Lost(error) => {
                let _ = self.broken(error.into());
                GroupInput::RendezvousLost
            }
        }
    }

    fn regrouping(&mut self, reason: String) {
        warn!("[{}] {reason}; will join the next round", self.plan.role);
        let at = self.clock.now().wall;
        self.emit(AgentEvent::Regrouping { at, reason });
    }

    fn tell_others(&mut self, exit: &WorkerExit) {
        self.others_told = true;
        self.meeting.tell_others(self.failure_in_words(exit));
    }

    /// What other nodes are told of a failure here.
    pub(crate) fn failure_in_words(&self, exit: &WorkerExit) -> String {
        let rank = self
            .workers
            .get(&exit.local_rank)
            .map_or(String::new(), |worker| {
                format!("rank {}, ", worker.identity.rank)
            });
        let how = match exit.exit {
            Exit::Code(code) => format!("exited with code {code}"),
            Exit::Signal(signal) => format!("was ended by signal {signal}"),
        };
        let (local_rank, pid) = (exit.local_rank, exit.pid);
        format!("worker ({rank}local rank {local_rank}, pid {pid}) {how}")
    }

    fn assigned(&mut self, workers: &[WorkerPlace], round: Round, restart_count: u32) {
        let now = self.clock.now();
        self.emit(AgentEvent::RanksAssigned {
            at: now.wall,
            took: now.mono.since(self.step_began),
            workers: workers.iter().map(|place| identity(place, 0)).collect(),
            master_addr: round.master.addr,
            master_port: round.master.port,
            restart_count,
        });
    }

    fn start(
        &mut self,
        place: &WorkerPlace,
        environment: Vec<(&'static str, String)>,
        restart_count: u32,
    ) -> Result<(), AgentError> {
        if self.workers.is_empty() {
            self.logs.begin_attempt(restart_count)?;
        }
        let streams = self.logs.streams(place)?;
        let error_file = streams.error_file.clone();
        let port_released = self.meeting.release_port(place);
        let spawned = spawn::spawn(&self.plan, place, environment, streams);
        drop(port_released);
        let spawned = spawned?;
        let now = self.clock.now();
        let pid = u32::try_from(spawned.pid.as_raw_nonzero().get()).unwrap_or(0);
        let identity = identity(place, pid);
        self.workers.insert(
            place.local_rank,
            Worker {
                identity: identity.clone(),
                pid: spawned.pid,
                started: now.wall,
                closing_signal: None,
                error_file,
            },
        );
        self.exits
            .watch(place.local_rank, spawned.pidfd)
            .map_err(|source| AgentError::System {
                what: "watch a worker (epoll)",
                source,
            })?;
        self.emit(AgentEvent::WorkerStarted {
            at: now.wall,
            worker: identity,
            restart_count,
        });
        Ok(())
    }

    fn report_failure(&mut self, exit: &WorkerExit) {
        let number = exit.exit.as_number();
        let (local_rank, pid) = (exit.local_rank, exit.pid);
        let program = self.plan.entrypoint.program.to_string_lossy();
        error!(
            "failed (exitcode: {number}) local_rank: {local_rank} (pid: {pid}) of binary: {program}"
        );
    }

    fn signal(&mut self, workers: &[LocalRank], signal: i32) {
        for local_rank in workers {
            stop::signal(self, *local_rank, signal);
        }
    }

    fn kill(&mut self, workers: &[LocalRank]) {
        for local_rank in workers {
            stop::kill(self, *local_rank);
        }
    }

    fn abandon(&mut self, workers: &[LocalRank]) {
        for local_rank in workers {
            if let Some(worker) = self.workers.get(local_rank) {
                error!(
                    "Process {} did not exit after SIGKILL; it hangs inside the kernel and is \
                     given up",
                    worker.identity.pid
                );
            }
            self.exits.forget(*local_rank);
        }
    }

    fn restarting(&mut self, remaining: u32, most: u32) {
        info!(
            "[{}] Worker group FAILED. {remaining}/{most} attempts left; will restart worker group",
            self.plan.role
        );
        let at = self.clock.now().wall;
        self.emit(AgentEvent::Restarting {
            at,
            remaining,
            most,
        });
    }

    fn finish(&mut self, ending: Ending) {
        self.ending = Some(ending);
    }
}

pub(crate) fn identity(place: &WorkerPlace, pid: u32) -> WorkerIdentity {
    WorkerIdentity {
        local_rank: place.local_rank,
        rank: place.rank,
        world_size: place.world_size,
        role_rank: place.role_rank,
        role_world_size: place.role_world_size,
        pid,
    }
}
