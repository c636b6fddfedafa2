//! Enabled watches and their deadlines.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_agent_proto::hang::heartbeat::{BeatStep, Heartbeats, Missed};
use rdzv_agent_proto::hang::line_splitter::SplitLine;
use rdzv_agent_proto::hang::progress::{ProgressChange, ProgressWatch, Usage};
use rdzv_agent_proto::hang::stacks::{Comparison, WorkerStack};
use rdzv_agent_proto::hang::timers::{Expiry, FileTimer, TimerRequest, Timers};
use rdzv_core::env;
use rdzv_core::rank::LocalRank;
use rdzv_core::time::{Mono, Now, earliest};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep_until;
use tracing::warn;

use super::look;
use super::pipes::{Pipes, Source};
use super::stragglers::Look;
use crate::AgentError;
use crate::clock::{Clock, or_forever};
use crate::error::system;
use crate::hang::HangPlan;

/// Limit on the complaints about unreadable lines per attempt.
const MOST_COMPLAINTS: u32 = 20;

/// Event that the monitor of hangs waits for.
#[derive(Debug)]
pub(crate) enum HangEvent {
    /// Workers wrote these lines.
    Lines(Vec<(Source, SplitLine)>),
    /// The agent can no longer wait for the pipes.
    Broken(io::Error),
    Due,
    /// An inspection found the stacks of all workers.
    Inspected(Vec<WorkerStack>),
    /// All nodes hang, or (`None`) it is unknown if the other nodes do.
    Compared(Option<Comparison>),
    Stragglers(Look),
}

/// Problem of one worker that hangs, or of the whole group.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// A timer of the watchdog has expired.
    Expired {
        worker: LocalRank,
        timer: FileTimer,
        late: Duration,
    },
    /// A worker sent no heartbeat in time.
    Missed(Missed),
    /// No worker of the group makes progress.
    Stuck { silent: Duration, limit: Duration },
}

/// Worker that sent a heartbeat, and the step that the heartbeat names.
pub(crate) type HeartbeatOf = (LocalRank, Option<BeatStep>);

pub(crate) struct Watches {
    pipes: Option<Pipes>,
    directory: Option<PathBuf>,
    timers: Timers,
    pub(super) heartbeats: Heartbeats,
    pub(super) progress: Option<ProgressWatch>,
    /// Running workers and their process ids.
    running: Vec<(LocalRank, u32)>,
    complaints: u32,
}

impl Watches {
    /// Creates the pipes; must be called inside the runtime.
    pub(super) fn new(plan: &HangPlan, workers: u32) -> Result<Self, AgentError> {
        let mut watches = Self {
            pipes: None,
            directory: None,
            timers: Timers::default(),
            heartbeats: Heartbeats::default(),
            progress: plan.progress.map(ProgressWatch::new),
            running: Vec::new(),
            complaints: 0,
        };
        if plan.watchdog.is_none() && plan.heartbeat.is_none() {
            return Ok(watches);
        }
        let no_poller = system("wait for what workers write (epoll)");
        let mut pipes = Pipes::new().map_err(no_poller)?;
        let failed = |path: &PathBuf| {
            let path = path.clone();
            |source| AgentError::Pipe { path, source }
        };
        if let Some(path) = &plan.watchdog {
            pipes.make(Source::Watchdog, path).map_err(failed(path))?;
        }
        if let Some(heartbeat) = &plan.heartbeat {
            let directory = &heartbeat.directory;
            fs::create_dir_all(directory).map_err(failed(directory))?;
            watches.directory = Some(directory.clone());
            for local_rank in 0..workers {
                let path = directory.join(local_rank.to_string());
                pipes
                    .make(Source::Heartbeat(LocalRank(local_rank)), &path)
                    .map_err(failed(&path))?;
            }
            watches.heartbeats = Heartbeats::new(heartbeat.limits.clone());
        }
        watches.pipes = Some(pipes);
        Ok(watches)
    }

    pub(crate) fn variables(&self, local_rank: LocalRank) -> Option<(&'static str, String)> {
        let path = self.pipes.as_ref()?.path(Source::Heartbeat(local_rank))?;
        Some((env::RDZV_HEARTBEAT, path.to_string_lossy().into_owned()))
    }

    /// `true` if no worker runs.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    fn on(&self) -> bool {
        self.pipes.is_some() || self.progress.is_some()
    }

    pub(crate) fn started(&mut self, now: Mono, local_rank: LocalRank, pid: u32) {
        if !self.on() {
            return;
        }
        self.running.push((local_rank, pid));
        self.heartbeats.started(now, local_rank);
        if let Some(progress) = &mut self.progress {
            progress.started(now, local_rank);
        }
    }

    /// Restarts the clocks of a worker that continues in its process.
    pub(super) fn continued(&mut self, now: Mono, local_rank: LocalRank) {
        if self.running.iter().any(|(rank, _)| *rank == local_rank) {
            self.heartbeats.started(now, local_rank);
            if let Some(progress) = &mut self.progress {
                progress.started(now, local_rank);
            }
        }
    }

    pub(crate) fn ended(&mut self, now: Mono, local_rank: LocalRank) {
        for (_, pid) in self.running.extract_if(.., |(rank, _)| *rank == local_rank) {
            self.timers.forget(pid);
        }
        self.heartbeats.ended(local_rank);
        if let Some(progress) = &mut self.progress {
            progress.ended(now, local_rank);
        }
    }

    /// Forgets the exited workers of the attempt, with their last unread lines.
    pub(super) fn clear(&mut self) {
        if !self.on() {
            return;
        }
        if let Some(pipes) = &mut self.pipes {
            pipes.forget();
        }
        self.timers.clear();
        self.running.clear();
        self.heartbeats.clear();
        if let Some(progress) = &mut self.progress {
            progress.clear();
        }
        self.complaints = 0;
    }

    /// Waits for the next event; deadlines count only while workers are `healthy`.
    /// Cancel-safe: the caller may drop the future.
    pub(super) async fn next(&mut self, clock: Clock, healthy: bool) -> HangEvent {
        let deadline = healthy.then(|| self.deadline()).flatten();
        tokio::select! {
            biased;
            lines = or_forever(self.pipes.as_mut().map(Pipes::next)) => match lines {
                Ok(lines) => HangEvent::Lines(lines),
                Err(error) => HangEvent::Broken(error),
            },
            () = or_forever(deadline.map(|at| sleep_until(clock.instant(at)))) => HangEvent::Due,
        }
    }

    fn deadline(&self) -> Option<Mono> {
        let progress = self.progress.as_ref();
        earliest([
            self.timers.deadline(),
            self.heartbeats.deadline(),
            progress.and_then(ProgressWatch::deadline),
        ])
    }

    pub(super) fn close(&mut self) {
        self.pipes = None;
        self.heartbeats = Heartbeats::default();
    }

    /// Returns the lines that workers have written until now.
    pub(super) fn unread(&mut self) -> Vec<(Source, SplitLine)> {
        self.pipes.as_mut().map_or_else(Vec::new, Pipes::take_all)
    }

    /// Handles lines that workers wrote; returns the heartbeats among them.
    pub(super) fn read(&mut self, now: Now, lines: &[(Source, SplitLine)]) -> Vec<HeartbeatOf> {
        let clock = Duration::try_from(clock_gettime(ClockId::Monotonic));
        let clock = clock.unwrap_or_default().as_secs_f64();
        let mut beats = Vec::new();
        for (source, line) in lines {
            match source {
                Source::Heartbeat(local_rank) => {
                    let text: &[u8] = match line {
                        SplitLine::Whole(text) => text,
                        SplitLine::TooLong => &[],
                    };
                    let beat = self.heartbeats.beat(now.mono, clock, *local_rank, text);
                    let (step, silent) = beat;
                    if let Some(silent) = silent {
                        warn!(
                            "worker with local rank {local_rank} sends heartbeats again after \
                             {:.1} s of silence",
                            silent.as_secs_f64()
                        );
                    }
                    beats.push((*local_rank, step));
                }
                Source::Watchdog => {
                    if let Err(problem) = self.request(now, line) {
                        self.complaints = self.complaints.saturating_add(1);
                        match self.complaints {
                            ..MOST_COMPLAINTS => warn!("watchdog: ignored a line: {problem}"),
                            MOST_COMPLAINTS => warn!(
                                "watchdog: ignored a line: {problem}; further lines are not \
                                 reported"
                            ),
                            _ => {}
                        }
                    }
                }
            }
        }
        beats
    }

    fn request(&mut self, now: Now, line: &SplitLine) -> Result<(), String> {
        let SplitLine::Whole(text) = line else {
            return Err("it is longer than 4096 bytes".to_owned());
        };
        self.timers.request(now, TimerRequest::parse(text)?)
    }

    /// Returns the processes with expired timers, and the workers that own them.
    pub(super) fn expired(&mut self, now: Now) -> Vec<(Expiry, Option<LocalRank>)> {
        let pids: Vec<u32> = self.running.iter().map(|(_, pid)| *pid).collect();
        let expired = self.timers.expired(now);
        expired
            .into_iter()
            .map(|expiry| {
                let leader = look::worker_of(expiry.pid, &pids);
                let worker = self.running.iter().find(|(_, pid)| Some(*pid) == leader);
                let local_rank = worker.map(|(local_rank, _)| *local_rank);
                (expiry, local_rank)
            })
            .collect()
    }

    pub(super) fn missed(&mut self, now: Mono) -> Vec<Missed> {
        self.heartbeats.missed(now)
    }

    /// Checks the usage of the workers, if a check is due.
    pub(super) fn progress(&mut self, now: Mono) -> Option<ProgressChange> {
        let progress = self.progress.as_mut()?;
        if progress.deadline()? > now {
            return None;
        }
        let mut quiet = Vec::new();
        for (local_rank, pid) in &self.running {
            if let Some(usage) = look::usage(*pid)
                && !progress.own(now, *local_rank, usage)
            {
                quiet.push((*local_rank, *pid));
            }
        }
        if !quiet.is_empty() {
            let leaders: Vec<u32> = quiet.iter().map(|(_, pid)| *pid).collect();
            let usages = look::others_in_sessions(&leaders);
            for (local_rank, pid) in quiet {
                let usage: Usage = usages.get(&pid).copied().unwrap_or_default();
                progress.children(now, local_rank, usage);
            }
        }
        progress.check(now)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.pipes = None;
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir(directory);
        }
    }
}
