//! The output of the workers.
//!
//! Workers write straight into their files, or to the console that they inherit, stderr through
//! `capture`. No other process of ours is in between, so a slow or dead reader of their output
//! neither slows them down nor ends them. One thread copies from the files what the console shows
//! as well. It buffers a few hundred kilobytes at most, however fast they write and however slow
//! the reader is: output that the console has not taken yet is in the files, and takes disk space
//! only.
//!
//! | file | is |
//! |---|---|
//! | `streams` | the interface of the agent: opens the files that each worker writes to |
//! | `capture` | the end of the output that workers write to the agent's own stderr |
//! | `layout` | the directories and their removal |
//! | `retained` | files of which only the end stays, for workers that `--local-ranks-filter` hides |
//! | `last_lines` | the end of a worker's stream, for the report of its failure |
//! | `tail` | the thread; woken by the kernel when a file has grown |
//! | `log_reader` | one file that it copies |
//! | `line_assembler` | bytes into whole lines |
//! | `filter` | copies of certain lines |
//! | `collapse` | decides which lines of several workers become one (`--collapse`) |
//! | `pty` | pseudo-terminals for workers |
//! | `relay` | the process that reads them |
//! | `view` | the live view: what it reads becomes lines and rows on the terminal |
//! | `output` | lines with prefixes, folded or not |
//! | `console` | stdout and stderr, shared by all writers of this process |

mod capture;
mod collapse;
mod console;
mod filter;
mod last_lines;
mod layout;
mod line_assembler;
mod log_reader;
mod output;
mod pty;
mod relay;
mod retained;
mod streams;
mod tail;
mod view;

pub(crate) use capture::StderrCapture;
pub(crate) use console::{Target, is_on_terminal, stderr_takes_lines};
pub use console::{write_own_lines, write_own_output};
pub(crate) use relay::Relay;
pub(crate) use streams::{Logs, WorkerStreams};
pub use view::{LiveView, ViewOptions};
