//! The command line of `rdzv`: its program name and its arguments.
//!
//! | file | holds |
//! |---|---|
//! | `program` | the choice of the command by the program's name or first argument |
//! | `contradictions` | flags that are given twice, or contradict a variable |
//! | `conventions` | rules of `torchrun`'s parser that clap does not have |
//! | `help` | the flags of `rdzv run` in groups, and as JSON |
//! | `parse` | the parser, which returns flags or a usage error |

mod contradictions;
mod conventions;
mod help;
mod parse;
mod program;

pub(crate) use self::conventions::{unknown_variables, variable};
pub(crate) use self::help::{grouped, json};
pub(crate) use self::parse::{Parsed, command, face, parse, usage};
pub(crate) use self::program::{Launcher, Program, link_directory, own_directory};
