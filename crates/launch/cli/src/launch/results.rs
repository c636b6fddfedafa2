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
    /// Write the verdict on the run to this file, as JSON
    ///
    /// Which failure was the first of the job, on which node and rank and why, with traceback and
    /// the last lines of stderr, and what followed from it. Written when the run ends, however it
    /// ends, and in one step: whoever reads the file finds all of it. The keys are in
    /// docs/report.md. A path that ends in a slash, or is a directory, is made if it has to be, and
    /// gets a file for each node, named after its host: `rdzv verdict DIRECTORY` reads all of them.
    #[arg(long, value_name = "FILE")]
    report: Option<OsString>,

    /// Whose exit code to end with: launcher or worker
    ///
    /// `launcher`: 0, 1 and 2, as torchrun. `worker`: the code of the worker that failed first, or
    /// 128 and the number of the signal that ended it, or that the launcher was told to stop with
    /// (143 for SIGTERM); errors of the launcher itself have codes of their own. The table is in
    /// docs/exit-codes.md.
    #[arg(long, value_name = "launcher|worker", default_value = "launcher")]
    exit_code: String,

    /// Let workers write to rdzv's own stderr with nothing in between
    ///
    /// Workers whose stderr is neither redirected nor teed share that of rdzv. Unless it is a
    /// terminal, they write there through a pipe, unchanged, so that the last lines of one that
    /// fails are known for the verdict. With this flag they are not.
    #[arg(long)]
    pub(crate) bare_stderr: bool,
}

impl ReportArgs {
    /// Resolves the report file and the exit codes. Done before everything else, so that a launch
    /// that is refused can be reported too.
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
                let problem = format!("{} cannot be made: {error}", path.display());
                Refusal::argument("--report", &problem)
            })?;
            Ok(path.join(format!("{}.json", host_name())))
        });
        Ok((report.transpose()?, exit_codes))
    }
}
