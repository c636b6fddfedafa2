//! The flags for watching a run while it goes on; all of them ours.

use std::ffi::OsString;

use clap::Args;

/// What their help stands under. Options under a heading take no prefix from those of `torchrun`.
const HEADING: &str = "Watching a run";

/// Flags of `rdzv run` and of `torchrun`.
#[derive(Debug, Clone, Args, PartialEq, Default)]
pub(crate) struct ObserveArgs {
    /// Append every event of the run to this file, one JSON object per line
    ///
    /// Each line is written in one piece, so several nodes may share a file where their file system
    /// appends atomically. The names and keys are in docs/events.md; unlike those of
    /// --event-log-handler, they are all that happens.
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub(crate) events_file: Option<OsString>,

    /// Serve health, metrics and status over HTTP here
    ///
    /// `/` is 200 while the agent's own threads make progress and else 503, `/metrics` is for
    /// Prometheus, `/status` is the worker group as JSON. A port alone is on 127.0.0.1; port 0 is a
    /// free one, told with LOGLEVEL=INFO. TORCHELASTIC_HEALTH_CHECK_PORT serves `/` alone, on all
    /// addresses.
    #[arg(long, value_name = "[HOST:]PORT", help_heading = HEADING)]
    pub(crate) status_addr: Option<String>,

    /// Give every worker a socket for its control plane
    ///
    /// Sets TORCH_WORKER_SERVER_SOCKET to a path of its own for each worker, where workers that use
    /// PyTorch's `worker_main` answer requests. With --status-addr they can be reached as
    /// `/workers/LOCAL_RANK/handler/NAME`.
    #[arg(long, help_heading = HEADING)]
    pub(crate) worker_server: bool,
}
