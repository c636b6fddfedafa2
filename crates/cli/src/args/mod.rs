//! The command line: which program we are, which flags there are, and what was typed.
//!
//! | file | holds |
//! |---|---|
//! | `run` | the flags of `rdzv run`, `torchrun` and the older launcher, with their help |
//! | `conventions` | the habits of `torchrun`'s parser that clap does not have |
//! | `parse` | a typed line becomes `RunArgs` or a usage error |
//! | `number` | numbers as Python reads them |
//! | `store` | the flags of `rdzv store` |
//! | `program` | the names that the program answers to, and its own commands |

pub(crate) mod conventions;
pub(crate) mod number;
pub(crate) mod parse;
pub(crate) mod program;
pub(crate) mod run;
pub(crate) mod store;

pub(crate) use parse::{Parsed, parse};
pub(crate) use run::{LaunchArgs, RunArgs};
