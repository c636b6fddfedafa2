//! The events of a run as sentences, and the facts for the report at its end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_agent::AgentEvent;
use rdzv_agent::outcome::Cause;
use rdzv_agent_proto::group::policy::StopRequests;
use rdzv_console::event::{Regrouped, Restart};
use rdzv_console::failure::Attempt;
use rdzv_console::preemption;
use rdzv_console::stop::{self, Stop};
use rdzv_console::success::Success;
use rdzv_console::{Line, line};
use rdzv_core::time::{Mono, Wall};

/// Sentences for users about a running job.
#[derive(Debug, Default)]
pub(crate) struct Story {
    shutdown_timeout: Duration,
    began: Option<Wall>,
    last: Wall,
    workers: u32,
    nodes: u32,
    /// Rank of this node in the last round; `None` before the first round.
    rank: Option<u32>,
    /// Running workers by local rank: process id and rank.
    running: BTreeMap<u32, (u32, u32)>,
    /// Directory of the output of each worker of the attempt, by local rank.
    outputs: BTreeMap<u32, PathBuf>,
    /// Attempts that were followed by another attempt.
    attempts: Vec<Attempt>,
    /// Changes of membership, each in a short phrase.
    changes: Vec<String>,
    /// Reason of a change whose next round is not complete yet.
    change: Option<String>,
    requests: StopRequests,
    stops: u32,
    /// `true` once a line has reported that the workers are killed.
    is_timed_out: bool,
    /// `true` if a worker has received a closing signal since the last rendezvous.
    is_closing: bool,
    /// Number of workers that were killed after a signal ended the run.
    killed: u32,
}

impl Story {
    /// Creates the story of a run that has not begun.
    pub(crate) fn new(shutdown_timeout: Duration) -> Self {
        Self {
            shutdown_timeout,
            ..Self::default()
        }
    }

    /// Records an event, and returns the lines about it.
    pub(crate) fn record(&mut self, event: &AgentEvent, width: Option<usize>) -> Vec<Line> {
        let began = *self.began.get_or_insert(event.at());
        self.last = event.at();
        match event {
            AgentEvent::RendezvousBegan { .. } => {
                // Workers that recover in their processes (`--in-process`) keep their output.
                self.outputs
                    .retain(|local_rank, _| self.running.contains_key(local_rank));
                self.is_timed_out = false;
                self.is_closing = false;
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
            AgentEvent::RanksAssigned { workers, .. } => {
                for worker in workers {
                    self.workers = worker.world_size;
                    if let Some((_, rank)) = self.running.get_mut(&worker.local_rank.0) {
                        *rank = worker.rank.0;
                    }
                }
                Vec::new()
            }
            AgentEvent::WorkerStarted { worker, files, .. } => {
                self.workers = worker.world_size;
                let running = (worker.pid, worker.rank.0);
                self.running.insert(worker.local_rank.0, running);
                let file = files.stderr.as_ref().or(files.stdout.as_ref());
                if let Some(directory) = file.and_then(|file| file.parent()) {
                    let local_rank = worker.local_rank.0;
                    self.outputs.insert(local_rank, directory.to_owned());
                }
                Vec::new()
            }
            AgentEvent::WorkerExited { worker, .. } => {
                self.running.retain(|_, (pid, _)| *pid != worker.pid);
                Vec::new()
            }
            AgentEvent::WorkerSignalled { forced: false, .. } => {
                self.is_closing = true;
                Vec::new()
            }
            AgentEvent::WorkerSignalled { pid, .. } => {
                self.killed += u32::from(self.stops > 0);
                if !self.is_closing && self.stops == 0 {
                    // The others may have left their function.
                    let late = self.running.values().find(|(known, _)| known == pid);
                    return late.map_or_else(Vec::new, |(_, rank)| stop::left_late(*rank, width));
                }
                if std::mem::replace(&mut self.is_timed_out, true) || self.running.is_empty() {
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
                    kept: &self.ranks(),
                };
                restart.lines(width)
            }
            AgentEvent::Regrouping { reason, .. } => {
                self.change = Some(reason.clone());
                Vec::new()
            }
            AgentEvent::SignalReceived { signal, at } => {
                let now = Mono::from_origin(at.since(began));
                let left = self
                    .requests
                    .timeout_after(now, *signal, self.shutdown_timeout);
                left.map_or_else(Vec::new, |left| self.stop(*signal, left, width))
            }
            AgentEvent::Preempted {
                signal,
                by,
                shutdown_timeout,
                ..
            } => preemption::notice(*signal, *by, *shutdown_timeout, width),
            AgentEvent::AgentFinal { .. } => self.regrouped(None, width),
            _ => Vec::new(),
        }
    }

    fn stop(&mut self, signal: i32, left: Duration, width: Option<usize>) -> Vec<Line> {
        self.stops += 1;
        self.is_timed_out = left.is_zero();
        let ranks = self.ranks();
        let stop = Stop {
            signal,
            request: self.stops,
            ranks: &ranks,
            left,
            shutdown_timeout: self.shutdown_timeout,
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
            is_in_process: !self.running.is_empty(),
        };
        self.changes.push(regrouped(None).sentence());
        regrouped(nodes).lines(width)
    }

    fn ranks(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.running.values().map(|(_, rank)| *rank).collect();
        ranks.sort_unstable();
        ranks
    }

    pub(crate) fn rank(&self) -> Option<u32> {
        self.rank
    }

    pub(crate) fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Returns the directory of a worker's output in the last attempt.
    ///
    /// `None` if the output is not in files.
    pub(crate) fn output_of(&self, local_rank: u32) -> Option<String> {
        let directory = self.outputs.get(&local_rank)?;
        Some(directory.display().to_string())
    }

    fn took(&self) -> Duration {
        self.last.since(self.began.unwrap_or(self.last))
    }

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

    /// Returns the lines about a run that a signal ended.
    pub(crate) fn stopped(&self, signal: i32, width: Option<usize>) -> Vec<Line> {
        stop::ended(signal, self.took(), self.workers, self.killed, width)
    }
}

/// Returns the reason of a restart in a short form: `rank 5: ValueError: boom`.
fn reason(attempt: &Attempt) -> String {
    const ROOM: usize = 50;
    let Some(failure) = &attempt.failure else {
        return "failure on another node".to_owned();
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
