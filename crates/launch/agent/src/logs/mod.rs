//! Output of the workers.
//!
//! Workers write directly into their files. No other rdzv process is in between, so a slow or
//! dead reader of the output neither slows workers down nor ends them. Output that goes to no file
//! passes through `relay` in the live and the plain view. Without a view it passes through
//! `capture`, or workers inherit the console.
//!
//! If the console shows output that goes to files too, one thread copies it from the files. The
//! thread buffers at most a few hundred kilobytes per file. With `--collapse` it also buffers about
//! 2 MiB of lines of stdout and as much of stderr. These limits hold however fast the workers write
//! and however slow the reader is. Output that the console has not taken yet is in the files and
//! uses only disk space.
//!
//! | file | content |
//! |---|---|
//! | `streams` | the interface of the agent: opens the files that each worker writes to |
//! | `capture` | copies of output that goes to no file, if no view is open; the end of stderr |
//! | `layout` | the directories and their removal |
//! | `retained` | files that keep only their end, for workers hidden by `--local-ranks-filter` |
//! | `last_lines` | the end of a worker's stream, for the report of its failure |
//! | `tail` | the thread; the kernel wakes it when a file has grown |
//! | `log_reader` | one file that the thread copies |
//! | `line_assembler` | conversion of bytes to whole lines |
//! | `filter` | copies of certain lines |
//! | `collapse` | decides which lines of several workers become one (`--collapse`, views) |
//! | `pty` | pseudo-terminals and pipes for workers |
//! | `relay` | the process that reads the pseudo-terminals or pipes of a view |
//! | `view` | the live and the plain view: turn the relay's output into lines and rows |
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

pub(crate) use capture::Capture;
pub(crate) use console::{Target, is_on_terminal, stderr_takes_lines};
pub use console::{write_own_lines, write_own_output};
pub(crate) use relay::Relay;
pub(crate) use streams::{Logs, WorkerStreams};
pub use view::{LiveView, ViewOptions};
