//! The command line: which program was called, and what was typed.
//!
//! | file | holds |
//! |---|---|
//! | `program` | the names that the program answers to |
//! | `conventions` | the habits of `torchrun`'s parser that clap does not have |
//! | `help` | the flags of `rdzv run` in groups, and as JSON |
//! | `parse` | a typed line becomes flags, or a usage error |

mod conventions;
mod help;
mod parse;
mod program;

pub(crate) use self::conventions::{unknown_variables, variable};
pub(crate) use self::help::{grouped, json};
pub(crate) use self::parse::{Parsed, command, face, parse, usage};
pub(crate) use self::program::{Launcher, Program, link_directory, own_directory};
