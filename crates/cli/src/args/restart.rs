//! The flags for what comes between a failure and the next attempt. `torchrun` has none of them.

use clap::Args;

use super::number;

/// What their help stands under. Options under a heading take no prefix from those of `torchrun`.
const HEADING: &str = "Restarts";

/// Flags for restarts.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct RestartArgs {
    /// Exit codes of workers after which no restart is tried, such as 3,42; -6 stands for SIGABRT
    ///
    /// A worker that ends so by itself fails the run at once, whatever restarts are left: for
    /// failures that would only come again, such as a wrong configuration.
    #[arg(
        long,
        value_name = "CODES",
        allow_hyphen_values = true,
        help_heading = HEADING
    )]
    pub(crate) final_exit_codes: Option<String>,

    /// Seconds to rest between the end of the workers and the next rendezvous
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "0",
        value_parser = number::float,
        help_heading = HEADING
    )]
    pub(crate) settle_delay: f64,
}
