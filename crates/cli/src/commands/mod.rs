//! What the program does, one command per file.
//!
//! | file | command |
//! |---|---|
//! | `dispatch` | chooses among the others |
//! | `run` | `rdzv run`, `torchrun`, `rdzv launch-compat`: the keeper and the agent |
//! | `own` | reads the flags of the others, and calls [`crate::demo`] for `rdzv demo` |
//! | `store` | `rdzv store` |
//! | `environment` | `rdzv env` |
//! | `completions` | `rdzv completions`, `--print-completion` |

mod completions;
mod dispatch;
mod environment;
mod own;
mod run;
mod store;

pub(crate) use self::dispatch::dispatch;
