//! The flags for workers that hang. `torchrun` has none of them.

use clap::Args;

use super::number;

/// What their help stands under. Options under a heading take no prefix from those of `torchrun`.
const HEADING: &str = "Workers that hang";

/// Flags for workers that hang.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct HangArgs {
    /// Seconds without progress of any worker of this node after which they are taken to hang; 0: never
    ///
    /// Progress is seen from outside: processor time of a worker and its children, output, data
    /// read. With several nodes, choose it longer than a node may have to wait for another one.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "0",
        value_parser = number::float,
        help_heading = HEADING
    )]
    pub(crate) hang_timeout: f64,

    /// Seconds between the heartbeats that workers send: 30, or init=600,step=30,checkpoint=300
    ///
    /// Workers write a line to the named pipe RDZV_HEARTBEAT; its first word is the phase that they
    /// enter, and the limit of that phase runs until the next line. A number without a phase is for
    /// all phases that are not named, but `init` (before the first line) and `done` have no limit
    /// unless they are named.
    #[arg(long, value_name = "LIMITS", help_heading = HEADING)]
    pub(crate) heartbeat_timeout: Option<String>,

    /// What follows when workers hang: report, restart or fail
    ///
    /// Each reports where every worker is. `restart` restarts the group as after a failure, as often
    /// as --max-restarts allows; `fail` ends the run.
    #[arg(
        long,
        value_name = "ACTION",
        default_value = "report",
        help_heading = HEADING
    )]
    pub(crate) hang_action: String,
}
