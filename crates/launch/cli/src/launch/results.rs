//! The results of a run: the report file, the exit code, and commands.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::context::{Machine, host_name};
use crate::exit::{ExitCodes, Refusal};
use crate::number;

/// Command that rdzv runs with the report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hook {
    /// Flag of the command.
    pub(crate) flag: &'static str,
    /// Command for `sh`.
    pub(crate) command: String,
    /// Longest time that the command may take.
    pub(crate) limit: Duration,
}

/// Commands that rdzv runs with the report.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Hooks {
    pub(crate) on_failure: Option<Hook>,
    pub(crate) on_restart: Option<Hook>,
}

/// Flags for the results of a run. `torchrun` has none of them.
#[derive(Debug, Clone, Args, PartialEq, Default)]
pub(crate) struct ReportArgs {
    /// Write the verdict on the run to this file, as JSON.
    ///
    /// The verdict names the first failure of the job: node, rank, cause, traceback and the last
    /// lines of stderr. It also lists the failures that followed. rdzv writes the file atomically
    /// when the run ends, also if its agent is killed, so a reader never finds a part of the file.
    /// The keys are in docs/report.md. A path that ends in a slash, or is a directory, gets one
    /// file for each node, named after its host. The directory is created if necessary; `rdzv
    /// verdict DIRECTORY` reads its .json files.
    #[arg(long, value_name = "FILE")]
    report: Option<OsString>,

    /// Source of the exit code: launcher or worker.
    ///
    /// `launcher`: 0, 1 or 2, as in torchrun, except with --node-check, with --preempt-signal, and
    /// for a signal before the workers start. `worker`: the code of the worker that failed first.
    /// If a signal ended that worker or stopped the launcher, the code is 128 plus the number of
    /// the signal (143 for SIGTERM). Errors of the launcher itself have other codes. The table is
    /// in docs/exit-codes.md.
    #[arg(long, value_name = "launcher|worker", default_value = "launcher")]
    exit_code: String,

    /// Run this command (for sh) after the run has failed on this node.
    ///
    /// The command gets the report of --report as JSON on its stdin, and its output goes to rdzv's
    /// stderr. It runs on each node whose run failed, but not after a signal to rdzv, a notice of
    /// preemption or a success. rdzv exits after the command, or after --hook-timeout.
    #[arg(long, value_name = "COMMAND")]
    on_failure: Option<String>,

    /// Run this command (for sh) whenever the workers restart.
    ///
    /// The reason is a failure of workers on any node, or a change of the nodes. The command gets
    /// the report as JSON on its stdin, with the outcome `restarting`. It runs beside the restart
    /// and never delays it. It does not run on a node whose agent was killed (--agent-restarts).
    #[arg(long, value_name = "COMMAND")]
    on_restart: Option<String>,

    /// Time limit of the --on-failure and --on-restart commands, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = number::float)]
    hook_timeout: f64,

    /// Let workers write directly to rdzv's own stderr.
    ///
    /// Without this flag, workers whose stderr is neither redirected nor teed write to rdzv's
    /// stderr through a pipe or a pseudo-terminal (--ui and --no-pty list exceptions). rdzv copies
    /// the last lines of a failed worker from there to the verdict. On a terminal, this flag also
    /// turns off --ui.
    #[arg(long)]
    pub(crate) bare_stderr: bool,
}

impl ReportArgs {
    /// Resolves the commands that get the report.
    pub(crate) fn hooks(&self) -> Result<Hooks, Refusal> {
        let seconds = self.hook_timeout;
        let limit = Duration::try_from_secs_f64(seconds).ok();
        let limit = limit.filter(|limit| !limit.is_zero()).ok_or_else(|| {
            let problem = format!("{seconds} is not a positive number of seconds");
            Refusal::argument("--hook-timeout", &problem)
        })?;
        let hook = |flag, command: &Option<String>| {
            let command = command.clone()?;
            Some(Hook {
                flag,
                command,
                limit,
            })
            .filter(|hook| !hook.command.trim().is_empty())
        };
        Ok(Hooks {
            on_failure: hook("--on-failure", &self.on_failure),
            on_restart: hook("--on-restart", &self.on_restart),
        })
    }

    /// Resolves the report file and the exit codes.
    ///
    /// This comes before the plan is resolved, so that a launch that is then refused has a report
    /// too.
    pub(crate) fn resolve(
        &self,
        machine: &dyn Machine,
    ) -> Result<(Option<PathBuf>, ExitCodes), Refusal> {
        let exit_codes = match self.exit_code.as_str() {
            "launcher" => ExitCodes::Launcher,
            "worker" => ExitCodes::Worker,
            other => {
                let problem = format!("'{other}' is neither launcher nor worker");
                return Err(Refusal::argument("--exit-code", &problem));
            }
        };
        let report = self.report.as_ref().filter(|path| !path.is_empty());
        let report = report.map(|path| {
            let is_directory = path.as_bytes().ends_with(b"/");
            let path = machine.working_directory().join(path);
            if !is_directory && !path.is_dir() {
                return Ok::<_, Refusal>(path);
            }
            fs::create_dir_all(&path).map_err(|error| {
                let problem = format!("cannot create {}: {error}", path.display());
                Refusal::argument("--report", &problem)
            })?;
            Ok(path.join(format!("{}.json", host_name())))
        });
        Ok((report.transpose()?, exit_codes))
    }
}
