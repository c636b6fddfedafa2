//! Where the workers' output goes.
//!
//! Workers write straight into their files (or to the console that they inherit); nothing of ours
//! is in between, so no worker is ever slowed down by, or dies with, whoever reads its output. What
//! is to be seen on the console as well is copied there from the files by one thread.
//!
//! * `layout` makes the directories and says what becomes of them.
//! * `tail` is the thread; `source` is one file that it reads, `lines` cuts what it read into whole
//!   lines with prefixes, `console` writes them.

mod console;
mod layout;
mod lines;
mod source;
mod tail;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rdzv_core::group::{WorkerPlace, plan};

use crate::{AgentError, LaunchPlan, LogBase, LogPlan, StreamSelection};
use layout::{AttemptDirectory, RunDirectory};
use tail::{Tail, TailedFile, Target};

/// What one worker writes to.
#[derive(Debug)]
pub(crate) struct WorkerStreams {
    /// `None`: the agent's own.
    pub(crate) stdout: Option<Stdio>,
    /// `None`: the agent's own.
    pub(crate) stderr: Option<Stdio>,
    /// `None`: there is no log directory.
    pub(crate) error_file: Option<PathBuf>,
}

/// The output of all workers of a run.
#[derive(Debug)]
pub(crate) struct Logs {
    plan: LogPlan,
    run_id: String,
    role: String,
    hostname: String,
    run: Option<RunDirectory>,
    attempt: Option<AttemptDirectory>,
    tail: Option<Tail>,
    /// Files of output that would have been on the console but for `--local-ranks-filter`.
    hidden: Vec<PathBuf>,
}

impl Logs {
    /// Makes nothing yet.
    pub(crate) fn new(plan: &LaunchPlan) -> Self {
        let node = rustix::system::uname();
        let node = node.nodename().to_string_lossy().into_owned();
        Self {
            plan: plan.logs.clone(),
            run_id: plan.run_id.as_str().to_owned(),
            role: plan.role.clone(),
            hostname: node.split('.').next().unwrap_or_default().to_owned(),
            run: None,
            attempt: None,
            tail: None,
            hidden: Vec::new(),
        }
    }

    /// Makes the directory of an attempt, and that of the run before the first one.
    pub(crate) fn begin_attempt(&mut self, restart_count: u32) -> Result<(), AgentError> {
        self.hidden.clear();
        if self.plan.base == LogBase::Discard {
            return Ok(());
        }
        let run = match &mut self.run {
            Some(run) => run,
            None => self
                .run
                .insert(RunDirectory::create(&self.plan.base, &self.run_id)?),
        };
        self.attempt = Some(run.attempt(restart_count)?);
        Ok(())
    }

    /// Opens what one worker writes to.
    pub(crate) fn streams(&mut self, place: &WorkerPlace) -> Result<WorkerStreams, AgentError> {
        let Some(attempt) = &self.attempt else {
            return Ok(WorkerStreams {
                stdout: None,
                stderr: None,
                error_file: None,
            });
        };
        let directory = attempt.worker(place.local_rank)?;
        let error_file = Some(directory.join("error.json"));
        let local_rank = place.local_rank.0;
        let tee = self.plan.tee.of(local_rank);
        let redirect = self.plan.redirects.of(local_rank);
        let shown = self
            .plan
            .console_ranks
            .as_ref()
            .is_none_or(|ranks| ranks.contains(&local_rank));
        let streams = |selection: StreamSelection| [selection.stdout, selection.stderr];
        let mut opened = [None, None];
        for (index, target) in [Target::Stdout, Target::Stderr].into_iter().enumerate() {
            let (tee, redirect) = (streams(tee)[index], streams(redirect)[index]);
            if !tee && !redirect && shown {
                continue;
            }
            let path = directory.join(target.file_name());
            let file = layout::create_log(&path)?;
            if tee && shown {
                self.tail_file(&path, target, place)?;
            } else if !tee && !redirect {
                self.hidden.push(path);
            }
            opened[index] = Some(file);
        }
        let [stdout, stderr] = opened.map(|file| file.map(Stdio::from));
        Ok(WorkerStreams {
            stdout,
            stderr,
            error_file,
        })
    }

    fn tail_file(
        &mut self,
        path: &Path,
        target: Target,
        place: &WorkerPlace,
    ) -> Result<(), AgentError> {
        let failed = |source| AgentError::Logs {
            path: path.display().to_string(),
            source,
        };
        let attempt = self.attempt.as_ref().expect("streams are of an attempt");
        let needles = match target {
            Target::Stdout => &self.plan.stdout_filters,
            Target::Stderr => &self.plan.stderr_filters,
        };
        let filtered = if needles.is_empty() {
            None
        } else {
            Some(attempt.filtered(target.filtered_name())?)
        };
        let file = TailedFile {
            path: path.to_owned(),
            file: File::open(path).map_err(failed)?,
            target,
            prefix: plan::line_prefix(
                &self.plan.prefix_template,
                &self.role,
                place,
                &self.hostname,
            ),
            needles: needles.clone(),
            filtered,
        };
        let tail = match &self.tail {
            Some(tail) => tail,
            None => self.tail.insert(Tail::start().map_err(failed)?),
        };
        tail.add(file);
        Ok(())
    }

    /// Nobody writes into the files of this attempt any more.
    pub(crate) fn writers_are_gone(&mut self) {
        if let Some(tail) = &self.tail {
            tail.writers_are_gone();
        }
    }

    /// Waits until everything that was written is on the console. May be dropped while waiting.
    pub(crate) async fn drained(&mut self) {
        if let Some(tail) = &mut self.tail {
            tail.drained().await;
        }
    }

    /// Non-empty files of the last attempt whose output was kept off the console although nobody
    /// asked for it in a file.
    pub(crate) fn hidden_output(&self) -> Vec<&Path> {
        self.hidden
            .iter()
            .filter(|path| path.metadata().is_ok_and(|held| held.len() > 0))
            .map(PathBuf::as_path)
            .collect()
    }

    /// Removes a temporary directory that holds no output.
    pub(crate) fn tidy_up(&mut self) {
        if let Some(run) = self.run.take() {
            run.remove_if_temporary_and_empty();
        }
    }
}
