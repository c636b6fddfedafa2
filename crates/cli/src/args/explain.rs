//! The flag of a dry run.

use clap::Args;
use clap::builder::PossibleValuesParser;

/// Flags that ask for the plan instead of the run.
#[derive(Debug, Clone, Default, Args, PartialEq)]
pub(crate) struct ExplainArgs {
    /// Print what would be started, and where every value comes from; start nothing
    ///
    /// `--explain=json` prints the same for programs. A line that cannot be run is refused as ever.
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "table",
        help_heading = "Before a run",
        value_parser = PossibleValuesParser::new(["table", "json"])
    )]
    pub(crate) explain: Option<String>,
}
