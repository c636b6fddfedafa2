//! Carries out what the worker group decides.

use std::path::Path;

use rdzv_agent_proto::group::{Ending, GroupInput, GroupOutput, Round, WorkerExit, WorkerRanks};
use rdzv_core::env;
use rdzv_core::rank::LocalRank;
use rdzv_rendezvous::Change;
use tracing::{error, info, warn};

use crate::agent::{Agent, Worker};
use crate::control_group::ControlGroup;
use crate::logs::Target;
use crate::meeting::{Answer, Joined};
use crate::verdict::LostNode;
use crate::{AgentError, AgentEvent, RendezvousPlan, WorkerFiles, WorkerIdentity, spawn, stop};

impl Agent<'_> {
    pub(crate) fn carry_out(&mut self, output: GroupOutput) {
        match output {
            GroupOutput::Join { .. } => {
                self.workers.clear();
                let now = self.clock.now();
                self.step_began = now.mono;
                self.emit(AgentEvent::RendezvousBegan {
                    at: now.wall,
                    restart_count: self.group.restart_count(),
                });
                self.tell_joining();
                self.hang.clear();
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
                    Err(error) => {
                        let program = matches!(
                            error,
                            AgentError::ProgramNotFound { .. } | AgentError::Spawn { .. }
                        );
                        self.not_started = program.then(|| identity(&worker, 0));
                        self.broken(error)
                    }
                };
                self.answers.push_back(answer);
            }
            GroupOutput::FirstFailure(exit) => self.report_failure(&exit),
            GroupOutput::Unhealthy { workers, last } => self.report_hang(&workers, last),
            GroupOutput::Announce(exit) => self.tell_others(&exit),
            GroupOutput::Regrouping { reason } => self.regrouping(reason),
            GroupOutput::Signal { workers, signal } => self.signal(&workers, signal),
            GroupOutput::Kill { workers } => self.kill(&workers),
            GroupOutput::Abandon { workers } => self.abandon(&workers),
            GroupOutput::ClearLeftovers => {
                self.clearing = true;
                if let Some(group) = self.control_group() {
                    group.kill_all();
                }
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
        self.tell_answer(&answer);
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
                    Ok(joined) => {
                        self.lost = None;
                        GroupInput::Joined(self.meeting.joined(joined))
                    }
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
            Answer::Told(signal) => self.signalled(signal),
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
            Change::Membership { round, reason } => {
                let lost = LostNode::in_sentence(&reason, self.clock.now().wall);
                self.lost = lost.or(self.lost.take());
                GroupInput::MembershipChanged { round, reason }
            }
            Change::PeerFailed { node, reason } => {
                let reason = self.heard(&reason);
                error!("node {node} has failed for good: {reason}");
                GroupInput::PeerFailed { node, reason }
            }
            Change::Closed => GroupInput::RunClosed,
            Change::Lost(error) => {
                let at = self.clock.now().wall;
                self.lost.get_or_insert_with(|| LostNode::host(&error, at));
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
        self.meeting.tell_others(self.told(exit));
    }

    fn assigned(&mut self, workers: &[WorkerRanks], round: Round, restart_count: u32) {
        let now = self.clock.now();
        self.emit(AgentEvent::RanksAssigned {
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

    fn start(
        &mut self,
        place: &WorkerRanks,
        mut environment: Vec<(&'static str, String)>,
        restart_count: u32,
    ) -> Result<(), AgentError> {
        environment.extend(self.hang.variables(place.local_rank));
        if let Some(path) = self.plan.worker_socket(place.local_rank) {
            // A server refuses a path that exists, and a worker that was killed leaves its own.
            let _ = std::fs::remove_file(&path);
            let path = path.to_string_lossy().into_owned();
            environment.push((env::TORCH_WORKER_SERVER_SOCKET, path));
        }
        if self.workers.is_empty() {
            self.logs.begin_attempt(restart_count)?;
        }
        let mut streams = self.logs.streams(place)?;
        if streams.stderr.is_none() && self.plan.overhear_stderr {
            streams.stderr = self.listener.stderr(place.local_rank);
        }
        let error_file = streams.error_file.clone();
        let port_released = self.meeting.release_port(place);
        let group = self.control_group.get_or_init(ControlGroup::make).as_ref();
        let entrance = group.and_then(|group| group.entrance(place.local_rank));
        let counted = group.map(|group| group.memory_events(place.local_rank));
        let oom_kills = self.oom_counters.read(counted);
        let spawned = spawn::spawn(&self.plan, place, environment, streams, entrance);
        drop(port_released);
        let spawned = spawned?;
        let now = self.clock.now();
        let pid = u32::try_from(spawned.pid.as_raw_nonzero().get()).unwrap_or(0);
        let identity = identity(place, pid);
        let file = |stream| {
            let path = self.logs.file(place.local_rank, stream);
            path.map(Path::to_owned)
        };
        let files = WorkerFiles {
            stdout: file(Target::Stdout),
            stderr: file(Target::Stderr),
            error_file: error_file.clone(),
        };
        self.workers.insert(
            place.local_rank,
            Worker {
                identity: identity.clone(),
                pid: spawned.pid,
                started: now.wall,
                closing_signal: None,
                condemned: None,
                oom_kills,
                out_of_memory: None,
                error_file,
            },
        );
        self.exits
            .watch(place.local_rank, spawned.pidfd)
            .map_err(|source| AgentError::System {
                what: "watch a worker (epoll)",
                source,
            })?;
        self.hang.started(now.mono, place.local_rank, pid);
        self.emit(AgentEvent::WorkerStarted {
            at: now.wall,
            worker: identity,
            files,
            restart_count,
        });
        Ok(())
    }

    fn report_failure(&mut self, exit: &WorkerExit) {
        self.listener.settle();
        let number = exit.exit.as_number();
        let (local_rank, pid) = (exit.local_rank, exit.pid);
        let program = self.plan.entrypoint.program.to_string_lossy();
        error!(
            "failed (exitcode: {number}) local_rank: {local_rank} (pid: {pid}) of binary: {program}"
        );
    }

    fn report_hang(&mut self, workers: &[LocalRank], last: bool) {
        let text = self.hang_in_words(workers);
        error!("[{}] Worker group UNHEALTHY: {text}", self.plan.role);
        if last && !matches!(self.plan.rendezvous, RendezvousPlan::Local) {
            self.others_told = true;
            self.meeting.tell_others(self.told_of_hang(workers, &text));
        }
    }

    /// What is said of workers that hang.
    pub(crate) fn hang_in_words(&self, workers: &[LocalRank]) -> String {
        let workers: Vec<String> = workers
            .iter()
            .filter_map(|worker| self.workers.get(worker))
            .map(|worker| {
                let WorkerIdentity {
                    rank,
                    local_rank,
                    pid,
                    ..
                } = worker.identity;
                let why = match &worker.condemned {
                    Some(cause) => cause.to_string(),
                    None => "makes no progress".to_owned(),
                };
                format!("worker (rank {rank}, local rank {local_rank}, pid {pid}): {why}")
            })
            .collect();
        workers.join("; ")
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

pub(crate) fn identity(place: &WorkerRanks, pid: u32) -> WorkerIdentity {
    WorkerIdentity {
        local_rank: place.local_rank,
        rank: place.rank,
        world_size: place.world_size,
        role_rank: place.role_rank,
        role_world_size: place.role_world_size,
        pid,
    }
}
