//! The command line: which program we are, which flags there are, and what was typed.
//!
//! | file | holds |
//! |---|---|
//! | `run` | the flags of `rdzv run`, `torchrun` and the older launcher, with their help |
//! | `console` | flags that say how the workers' lines look |
//! | `conventions` | the habits of `torchrun`'s parser that clap does not have |
//! | `parse` | a typed line becomes `RunArgs` or a usage error |
//! | `observe` | the flags for watching a run |
//! | `hang` | the flags for workers that hang |
//! | `explain` | the flag of `rdzv run` that is a question |
//! | `settings` | every flag with its value and where that comes from |
//! | `restart` | the flags for what comes between a failure and the next attempt |
//! | `verdict` | the flags for what is left of a run |
//! | `number` | numbers as Python reads them |
//! | `store` | the flags of `rdzv store` |
//! | `program` | the names that the program answers to, and its own commands |

pub(crate) mod console;
pub(crate) mod conventions;
pub(crate) mod explain;
pub(crate) mod hang;
pub(crate) mod number;
pub(crate) mod observe;
pub(crate) mod parse;
pub(crate) mod program;
pub(crate) mod restart;
pub(crate) mod run;
pub(crate) mod settings;
pub(crate) mod store;
pub(crate) mod verdict;

pub(crate) use hang::HangArgs;
pub(crate) use parse::{Parsed, parse};
pub(crate) use run::{LaunchArgs, RunArgs};
pub(crate) use settings::{Given, Setting, settings};
