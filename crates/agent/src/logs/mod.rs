//! Where the workers' output goes.
//!
//! Workers write straight into their files (or to the console that they inherit, stderr through
//! `capture`); nothing of ours is in between, so no worker is ever slowed down by, or dies with, whoever reads its output. What
//! is to be seen on the console as well is copied there from the files by one thread, which holds
//! no more than a few hundred kilobytes however fast they write and however slow the reader is:
//! what the console has not taken yet is in the files, and takes disk space only.
//!
//! | file | is |
//! |---|---|
//! | `streams` | what the agent talks to: opens what each worker writes to |
//! | `capture` | the end of what workers write to the agent's own stderr |
//! | `layout` | the directories, and what becomes of them |
//! | `kept` | files of which only the end stays, for workers that `--local-ranks-filter` hides |
//! | `last_lines` | the end of a worker's stream, for whoever explains its end |
//! | `tail` | the thread; woken by the kernel when a file has grown |
//! | `source` | one file that it copies |
//! | `lines` | bytes into whole lines |
//! | `filter` | copies of certain lines |
//! | `fold` | decides which lines of several workers become one (`--collapse`) |
//! | `output` | lines with prefixes, folded or not |
//! | `console` | stdout and stderr, as everybody in this process writes to them |

mod capture;
mod console;
mod filter;
mod fold;
mod kept;
mod last_lines;
mod layout;
mod lines;
mod output;
mod source;
mod streams;
mod tail;

pub(crate) use capture::Listener;
pub(crate) use console::Target;
pub use console::write_own_lines;
pub(crate) use streams::{Logs, WorkerStreams};
