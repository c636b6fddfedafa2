//! What the program does, one command per file.
//!
//! | file | command |
//! |---|---|
//! | `dispatch` | chooses among the others |
//! | `run` | `rdzv run`, `torchrun`, `rdzv launch-compat`: the keeper and the agent |
//! | `conclude` | how a launch ends: report, verdict, exit code |
//! | `lost_agent` | what the keeper says for an agent that was killed |
//! | `own` | reads the flags of the others, and calls [`crate::demo`] for `rdzv demo` |
//! | `store` | `rdzv store` |
//! | `environment` | `rdzv env` |
//! | `completions` | `rdzv completions`, `--print-completion` |

mod completions;
mod conclude;
mod dispatch;
mod environment;
mod lost_agent;
mod own;
mod run;
mod store;

pub(crate) use self::dispatch::dispatch;
