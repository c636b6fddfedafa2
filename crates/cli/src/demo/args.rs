//! The flags of `rdzv demo`, and what it tells its workers.

use std::path::PathBuf;

/// How many workers there are unless the user wants another number.
pub(super) const DEFAULT_WORKERS: u32 = 4;

/// See what rdzv is for: some processes train, one is killed, all go on
///
/// Needs no Python, no server and no network, takes about two seconds and leaves nothing behind. The
/// processes train one small model together. They run under the agent of `rdzv run`, as with
/// `--max-restarts 1`. The exit code is 0 if everything happened as it should; LOGLEVEL=INFO shows
/// what the agent says.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoArgs {
    /// How many worker processes.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_WORKERS,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,

    /// Kill nobody: the result is the same to the last bit.
    #[arg(long)]
    pub(crate) no_kill: bool,
}

/// One worker of the demo
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoWorkerArgs {
    /// Directory of the checkpoint.
    #[arg(long)]
    pub(crate) directory: PathBuf,

    /// Name of the socket for reports.
    #[arg(long)]
    pub(crate) reports: String,
}
