//! Output of all workers in a run, as the agent sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rdzv_agent_proto::group::WorkerRanks;
use rdzv_core::rank::LocalRank;
use tracing::{debug, warn};

use super::console::Target;
use super::filter::{Filter, FilteredLog};
use super::last_lines;
use super::layout::{AttemptDirectory, RunDirectory, create_log, failed};
use super::log_reader::LogReader;
use super::output::{Labels, LogStream};
use super::retained::{RETAINED, RetainedFile};
use super::tail::{Command, Tail};
use crate::config::{LogBase, LogPlan, StreamSelection};
use crate::{AgentConfig, AgentError};

/// Output streams of one worker: log files, terminals or pipes.
#[derive(Debug, Default)]
pub(crate) struct WorkerStreams {
    /// `None` for the agent's own stdout.
    pub(crate) stdout: Option<OwnedFd>,
    /// `None` for the agent's own stderr.
    pub(crate) stderr: Option<OwnedFd>,
    /// `None` if the worker has no log directory.
    pub(crate) error_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    /// The console: directly, through `capture`, or through a view.
    Inherited,
    /// A log.
    Redirected,
    /// A log, and from there the console.
    Teed,
    /// A file that retains only its end.
    Retained,
}

#[derive(Debug)]
pub(crate) struct Logs {
    plan: LogPlan,
    run_id: String,
    labels: Labels,
    run: Option<RunDirectory>,
    attempt: Option<AttemptDirectory>,
    is_restart: bool,
    thread: Option<Tail>,
    /// Files of the workers of this attempt.
    files: BTreeMap<(LocalRank, Target), PathBuf>,
    /// Streams whose files retain only their end.
    retained: BTreeSet<(LocalRank, Target)>,
    /// Workers of this attempt that failed, other than those that were stopped.
    failed: BTreeSet<LocalRank>,
}

impl Logs {
    /// Creates the output of a run; opens nothing yet.
    pub(crate) fn new(config: &AgentConfig) -> Self {
        let node = rustix::system::uname();
        let node = node.nodename().to_string_lossy().into_owned();
        Self {
            plan: config.logs.clone(),
            run_id: config.identity.run_id.as_str().to_owned(),
            labels: Labels {
                template: config.logs.prefix_template.clone(),
                role: config.identity.role.clone(),
                hostname: node.split('.').next().unwrap_or_default().to_owned(),
            },
            run: None,
            attempt: None,
            is_restart: false,
            thread: None,
            files: BTreeMap::new(),
            retained: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    /// Creates the directory of an attempt, and first that of the run.
    ///
    /// Errors end the first attempt, but not a later one: a run of several days must not end
    /// because the disk of its logs is full. The workers of such an attempt write to the console.
    /// If no flag asks for logs, the directory of the run may be missing.
    pub(crate) fn begin_attempt(&mut self, restart_count: u32) -> Result<(), AgentError> {
        self.files.clear();
        self.retained.clear();
        self.failed.clear();
        self.is_restart = self.run.is_some();
        self.attempt = None;
        if self.plan.base == LogBase::Discard {
            return Ok(());
        }
        let run = match &mut self.run {
            Some(run) => run,
            None => match RunDirectory::create(&self.plan.base, &self.run_id) {
                Ok(run) => self.run.insert(run),
                // Without a flag for logs, the directory would hold only error files.
                Err(error) if !self.plan.asks_for_files() => {
                    debug!("{error}; there are no error files");
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        match run.attempt(restart_count) {
            Ok(attempt) => self.attempt = Some(attempt),
            Err(error) if self.is_restart => warn!("{error}; the workers write to the console"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn streams(&mut self, ranks: &WorkerRanks) -> Result<WorkerStreams, AgentError> {
        match self.open(ranks) {
            Err(error) if self.is_restart => {
                warn!(
                    "{error}; the worker with local rank {} writes to the console",
                    ranks.local_rank
                );
                Ok(WorkerStreams::default())
            }
            opened => opened,
        }
    }

    fn open(&mut self, ranks: &WorkerRanks) -> Result<WorkerStreams, AgentError> {
        let Some(attempt) = &self.attempt else {
            return Ok(WorkerStreams::default());
        };
        let directory = attempt.worker(ranks.local_rank)?;
        Ok(WorkerStreams {
            stdout: self.open_stream(&directory, ranks, Target::Stdout)?,
            stderr: self.open_stream(&directory, ranks, Target::Stderr)?,
            error_file: Some(directory.join("error.json")),
        })
    }

    fn open_stream(
        &mut self,
        directory: &Path,
        ranks: &WorkerRanks,
        target: Target,
    ) -> Result<Option<OwnedFd>, AgentError> {
        let destination = self.destination(ranks.local_rank, target);
        let name = match destination {
            Destination::Inherited => return Ok(None),
            Destination::Redirected | Destination::Teed => target.file_name(),
            Destination::Retained => target.retained_name(),
        };
        let path = directory.join(name);
        let file = create_log(&path)?;
        match destination {
            Destination::Teed => {
                let filtered = self.filtered(target)?;
                let reader = self.reader(&path, ranks, target, filtered)?;
                self.thread(&path)?.send(Command::Add(reader));
            }
            Destination::Retained => {
                let reader = self.reader(&path, ranks, target, None)?;
                let retained = RetainedFile::new(reader).map_err(failed(&path))?;
                self.thread(&path)?.send(Command::Retain(retained));
                self.retained.insert((ranks.local_rank, target));
            }
            Destination::Redirected | Destination::Inherited => {}
        }
        self.files.insert((ranks.local_rank, target), path);
        Ok(Some(file.into()))
    }

    fn destination(&self, local_rank: LocalRank, target: Target) -> Destination {
        let selected = |selection: StreamSelection| match target {
            Target::Stdout => selection.stdout,
            Target::Stderr => selection.stderr,
        };
        let ranks = self.plan.console_ranks.as_ref();
        let shown = ranks.is_none_or(|ranks| ranks.contains(&local_rank.0));
        match (
            selected(self.plan.tee.of(local_rank.0)),
            selected(self.plan.redirects.of(local_rank.0)),
        ) {
            (true, _) if shown => Destination::Teed,
            (false, false) if shown => Destination::Inherited,
            (false, false) => Destination::Retained,
            (true, _) | (_, true) => Destination::Redirected,
        }
    }

    fn reader(
        &self,
        path: &Path,
        ranks: &WorkerRanks,
        target: Target,
        filtered: Option<FilteredLog>,
    ) -> Result<LogReader, AgentError> {
        let stream = LogStream {
            // The thread that copies assigns the numbers of its streams.
            id: 0,
            target,
            ranks: *ranks,
            prefix: self.labels.prefix(&[*ranks]).into_bytes(),
        };
        let filter = Filter::new(self.needles(target), filtered);
        LogReader::open(path, stream, filter).map_err(failed(path))
    }

    fn filtered(&self, target: Target) -> Result<Option<FilteredLog>, AgentError> {
        let name = format!("filtered_{}", target.file_name());
        let attempt = self.attempt.as_ref();
        let wanted = attempt.filter(|_| !self.needles(target).is_empty());
        wanted.map(|attempt| attempt.filtered(&name)).transpose()
    }

    fn needles(&self, target: Target) -> &Vec<String> {
        match target {
            Target::Stdout => &self.plan.stdout_filters,
            Target::Stderr => &self.plan.stderr_filters,
        }
    }

    fn thread(&mut self, path: &Path) -> Result<&mut Tail, AgentError> {
        if self.thread.is_none() {
            let labels = self.plan.collapse.then(|| self.labels.clone());
            self.thread = Some(Tail::start(labels).map_err(failed(path))?);
        }
        Ok(self.thread.as_mut().expect("it was started just now"))
    }

    /// Records a worker that failed and was not stopped for another failure.
    /// Its retained output will be copied to the console.
    pub(crate) fn worker_failed(&mut self, local_rank: LocalRank) {
        self.failed.insert(local_rank);
    }

    pub(crate) fn writers_are_gone(&mut self) {
        if self.thread.is_none() {
            return;
        }
        for (local_rank, target) in &self.retained {
            let path = &self.files[&(*local_rank, *target)];
            if self.failed.contains(local_rank)
                && path.metadata().is_ok_and(|metadata| metadata.len() > 0)
            {
                warn!(
                    "local rank {local_rank} has failed; the end of its {} (up to {} KiB), which \
                     --local-ranks-filter hid, follows and is also in {}",
                    target.name(),
                    RETAINED >> 10,
                    path.display()
                );
            }
        }
        let failed = std::mem::take(&mut self.failed);
        if let Some(thread) = &mut self.thread {
            thread.send(Command::WritersAreGone(failed));
        }
    }

    /// Waits until all output is on the console.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn drained(&mut self) {
        if let Some(thread) = &self.thread {
            thread.drained().await;
        }
    }

    /// Returns the number of bytes in teed files that are not on the console yet.
    pub(crate) fn unshown(&self) -> u64 {
        self.thread.as_ref().map_or(0, Tail::unshown)
    }

    /// Returns the last lines of one of a worker's streams in this attempt.
    ///
    /// There are at most `most` lines (see [`last_lines::read`]). The result is empty if the stream
    /// goes to no file, or if the file is empty or unreadable. It is complete once the worker and
    /// its descendants have exited.
    pub(crate) fn tail(&self, local_rank: LocalRank, stream: Target, most: usize) -> Vec<String> {
        self.files
            .get(&(local_rank, stream))
            .and_then(|path| last_lines::read(path, most).ok())
            .unwrap_or_default()
    }

    /// Returns the file that a worker's stream goes to in this attempt, if any.
    pub(crate) fn file(&self, local_rank: LocalRank, stream: Target) -> Option<&Path> {
        let path = self.files.get(&(local_rank, stream))?;
        Some(path)
    }

    /// Removes a temporary directory without output.
    /// Retained output of hidden workers counts only if the run has failed.
    pub(crate) fn tidy_up(&mut self, succeeded: bool) {
        if let Some(run) = self.run.take() {
            run.tidy_up(succeeded);
        }
    }
}
