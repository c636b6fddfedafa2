//! Flags that say how the workers' lines look on the console; torchrun has none of them.

use clap::Args;

/// How the console looks.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct ConsoleArgs {
    /// Show equal lines of several workers once, as in `[default0-3,5]:text`
    ///
    /// Concerns lines that -t labels; without -t, all output is labelled (-t 3). Equal lines that come within 100 ms of one another become
    /// one, whose label names all ranks; the others stay as they are, and in the order of their
    /// worker, up to 100 ms later.
    #[arg(long)]
    pub(crate) collapse: bool,
}
