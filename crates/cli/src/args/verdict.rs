//! The flags for what is left of a run when it is over; all of them ours.

use std::ffi::OsString;

use clap::Args;

/// Flags of `rdzv run` and of `torchrun`.
#[derive(Debug, Clone, Args, PartialEq, Default)]
pub(crate) struct VerdictArgs {
    /// Write the verdict on the run to this file, as JSON
    ///
    /// Which failure was the first of the job, on which node and rank and why, with traceback and
    /// the last lines of stderr, and what followed from it. Written when the run ends, however it
    /// ends, and in one step: whoever reads the file finds all of it. The keys are in
    /// docs/report.md.
    #[arg(long, value_name = "FILE", help_heading = "What is left of a run")]
    pub(crate) report: Option<OsString>,

    /// Whose exit code to end with: launcher or worker
    ///
    /// `launcher`: 0, 1 and 2, as torchrun. `worker`: the code of the worker that failed first, or
    /// 128 and the number of the signal that ended it, or that the launcher was told to stop with
    /// (143 for SIGTERM); errors of the launcher itself have codes of their own. The table is in
    /// docs/exit-codes.md.
    #[arg(
        long,
        value_name = "launcher|worker",
        default_value = "launcher",
        help_heading = "What is left of a run"
    )]
    pub(crate) exit_code: String,

    /// Let workers write to rdzv's own stderr with nothing in between
    ///
    /// Workers whose stderr is neither redirected nor teed share that of rdzv. Unless it is a
    /// terminal, they write there through a pipe, unchanged, so that the last lines of one that
    /// fails are known for the verdict. With this flag they are not.
    #[arg(long, help_heading = "What is left of a run")]
    pub(crate) bare_stderr: bool,
}
