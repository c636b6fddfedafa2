//! The commands of the program.
//!
//! | file | command |
//! |---|---|
//! | `launcher` | `rdzv run`, `torchrun`, `rdzv launch-compat`: the keeper and the agent |
//! | `conclude` | the end of a launch: report, verdict, exit code |
//! | `lost_agent` | the end of a launch whose agent was killed, for the other nodes |
//! | `subcommands` | the table of all commands, and `rdzv env` |
//! | `store_command` | `rdzv store` |
//! | `verdict` | `rdzv verdict` |
//! | `check` | `rdzv check` |
//! | `help` | `rdzv help TOPIC` |
//! | `link` | `rdzv link` |
//! | `manual` | `rdzv man` |
//! | `completions` | `rdzv completions`, `--print-completion` |

mod check;
mod completions;
mod conclude;
mod help;
mod launcher;
mod link;
mod lost_agent;
mod manual;
mod store_command;
mod subcommands;
mod verdict;

pub(crate) use self::launcher::{agent, keep};
pub(crate) use self::subcommands::run;
