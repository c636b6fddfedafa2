//! The results of a run: the report file, and the exit code.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;

use super::context::{Machine, host_name};
use crate::exit::{ExitCodes, Refusal};

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
    /// `launcher`: 0, 1 or 2, as in torchrun, except with --node-check and --preempt-signal.
    /// `worker`: the code of the worker that failed first. If a signal ended that worker or stopped
    /// the launcher, the code is 128 plus the number of the signal (143 for SIGTERM). Errors of the
    /// launcher itself have other codes. The table is in docs/exit-codes.md.
    #[arg(long, value_name = "launcher|worker", default_value = "launcher")]
    exit_code: String,

    /// Let workers write directly to rdzv's own stderr.
    ///
    /// Otherwise, workers whose stderr is neither redirected nor teed write to rdzv's stderr
    /// through a pipe or a pseudo-terminal. From it, rdzv reads the last lines of a failed worker
    /// for the verdict. On a terminal, this flag also turns off --ui.
    #[arg(long)]
    pub(crate) bare_stderr: bool,
}

impl ReportArgs {
    /// Resolves the report file and the exit codes.
    ///
    /// This comes before everything else, so that a refused launch has a report too.
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
