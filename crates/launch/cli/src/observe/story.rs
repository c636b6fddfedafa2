//! The events of a run as sentences, and what its end needs of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_agent::{AgentEvent, Cause};
use rdzv_agent_proto::group::policy::StopRequests;
use rdzv_console::event::{Regrouped, Restart};
use rdzv_console::failure::Attempt;
use rdzv_console::preemption;
use rdzv_console::stop::{self, Stop};
use rdzv_console::success::Success;
use rdzv_console::{Line, line};
use rdzv_core::time::{Mono, Wall};

/// A run as it goes on, for people.
#[derive(Debug, Default)]
pub(crate) struct Story {
    grace: Duration,
    began: Option<Wall>,
    /// The last event.
    last: Wall,
    /// Number of workers and nodes of the last round.
    workers: u32,
    nodes: u32,
    /// Rank of this node in the last round; none if it has been in none.
    rank: Option<u32>,
    /// Workers of the attempt that run: process id and rank.
    running: BTreeMap<u32, u32>,
    /// Directory of the output of each worker of the attempt, by local rank.
    outputs: BTreeMap<u32, PathBuf>,
    /// The attempts that were followed by another.
    attempts: Vec<Attempt>,
    /// Changes of membership, in few words.
    changes: Vec<String>,
    /// A change whose round has not been formed.
    change: Option<String>,
    requests: StopRequests,
    stops: u32,
    /// Whether it has been said that the grace is over.
    grace_is_over: bool,
    /// Number of workers that were killed after a signal had ended the run.
    killed: u32,
}

impl Story {
    /// A run that has not begun. `grace` is the time of workers between the closing signal and SIGKILL.
    pub(crate) fn new(grace: Duration) -> Self {
        Self {
            grace,
            ..Self::default()
        }
    }

    /// Takes an event; the lines that tell of it.
    pub(crate) fn record(&mut self, event: &AgentEvent, width: Option<usize>) -> Vec<Line> {
        let began = *self.began.get_or_insert(event.at());
        self.last = event.at();
        match event {
            AgentEvent::RendezvousBegan { .. } => {
                self.running.clear();
                self.outputs.clear();
                self.grace_is_over = false;
                Vec::new()
            }
            AgentEvent::Rendezvous {
                result: Ok((rank, nodes)),
                ..
            } => {
                self.rank = Some(rank.0);
                self.nodes = *nodes;
                self.regrouped(Some(*nodes), width)
            }
            AgentEvent::WorkerStarted { worker, files, .. } => {
                self.workers = worker.world_size;
                self.running.insert(worker.pid, worker.rank.0);
                let file = files.stderr.as_ref().or(files.stdout.as_ref());
                if let Some(directory) = file.and_then(|file| file.parent()) {
                    let local_rank = worker.local_rank.0;
                    self.outputs.insert(local_rank, directory.to_owned());
                }
                Vec::new()
            }
            AgentEvent::WorkerExited { worker, .. } => {
                self.running.remove(&worker.pid);
                Vec::new()
            }
            AgentEvent::WorkerSignalled { forced: true, .. } => {
                self.killed += u32::from(self.stops > 0);
                if std::mem::replace(&mut self.grace_is_over, true) {
                    return Vec::new();
                }
                stop::killed(&self.ranks(), width)
            }
            AgentEvent::Restarting {
                remaining,
                most,
                failure,
                ..
            } => {
                let number = u32::try_from(self.attempts.len() + 1).unwrap_or(u32::MAX);
                let failure = failure.as_deref();
                self.attempts.push(Attempt {
                    number,
                    failure: failure.cloned(),
                });
                let restart = Restart {
                    number: most - remaining,
                    most: *most,
                    failure,
                };
                restart.lines(width)
            }
            AgentEvent::Regrouping { reason, .. } => {
                self.change = Some(reason.clone());
                Vec::new()
            }
            AgentEvent::SignalReceived { signal, at } => {
                let now = Mono::from_origin(at.since(began));
                let left = self.requests.grace_after(now, *signal, self.grace);
                left.map_or_else(Vec::new, |left| self.stop(*signal, left, width))
            }
            AgentEvent::Preempted {
                signal, by, grace, ..
            } => preemption::notice(*signal, *by, *grace, width),
            AgentEvent::AgentFinal { .. } => self.regrouped(None, width),
            _ => Vec::new(),
        }
    }

    fn stop(&mut self, signal: i32, left: Duration, width: Option<usize>) -> Vec<Line> {
        self.stops += 1;
        self.grace_is_over = left.is_zero();
        let ranks = self.ranks();
        let stop = Stop {
            signal,
            request: self.stops,
            ranks: &ranks,
            left,
        };
        stop.lines(width)
    }

    fn regrouped(&mut self, nodes: Option<u32>, width: Option<usize>) -> Vec<Line> {
        let Some(reason) = self.change.take() else {
            return Vec::new();
        };
        let regrouped = |nodes| Regrouped {
            reason: &reason,
            nodes,
        };
        self.changes.push(regrouped(None).sentence());
        regrouped(nodes).lines(width)
    }

    /// The ranks that run, in their order.
    fn ranks(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.running.values().copied().collect();
        ranks.sort_unstable();
        ranks
    }

    /// Rank of this node in the last round; none if it has been in none.
    pub(crate) fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// The attempts before the last one.
    pub(crate) fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// The directory of a worker's output in the last attempt, if it is in files.
    pub(crate) fn output_of(&self, local_rank: u32) -> Option<String> {
        let directory = self.outputs.get(&local_rank)?;
        Some(directory.display().to_string())
    }

    fn took(&self) -> Duration {
        self.last.since(self.began.unwrap_or(self.last))
    }

    /// The run has succeeded.
    pub(crate) fn success(&self) -> Success {
        let attempts = self.attempts.iter();
        Success {
            took: self.took(),
            workers: self.workers,
            nodes: self.nodes,
            restarts: attempts.map(reason).collect(),
            changes: self.changes.clone(),
        }
    }

    /// A signal has ended the run.
    pub(crate) fn stopped(&self, signal: i32, width: Option<usize>) -> Vec<Line> {
        stop::ended(signal, self.took(), self.workers, self.killed, width)
    }
}

/// The reason of a restart in few words: `rank 5: ValueError: boom`.
fn reason(attempt: &Attempt) -> String {
    const ROOM: usize = 50;
    let Some(failure) = &attempt.failure else {
        return "for a failure elsewhere".to_owned();
    };
    let cause = match &failure.cause {
        Cause::OutOfMemory { .. } => "out of memory".to_owned(),
        cause => line::cut(&cause.to_string(), ROOM),
    };
    match failure.evidence.rank {
        Some(rank) => format!("rank {rank}: {cause}"),
        None => cause,
    }
}

#[cfg(test)]
mod tests;
