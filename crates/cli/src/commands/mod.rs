//! What the program does, one command per file.
//!
//! | file | command |
//! |---|---|
//! | `run` | `rdzv run`, `torchrun`, `rdzv launch-compat`: the keeper and the agent |
//! | `own` | reads the flags of the others, and calls [`crate::demo`] for `rdzv demo` |
//! | `store` | `rdzv store` |
//! | `environment` | `rdzv env` |
//! | `completions` | `rdzv completions`, `--print-completion` |

mod completions;
mod environment;
mod own;
mod run;
mod store;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

use crate::args::program::Program;
use crate::exit::Exit;

/// Does what the words ask for. `called` is the name that the program was called by.
pub(crate) fn dispatch(called: &OsStr, words: Vec<OsString>) -> ExitCode {
    match Program::of(called, words) {
        Program::Launch(launcher, words) if rdzv_agent::is_kept() => {
            run::agent(launcher, called, &words)
        }
        Program::Launch(..) => run::keep(called),
        Program::Own(words) => own::run(&words),
    }
}

/// Writes a text and a newline to stderr. If that fails there is nobody left to tell.
pub(crate) fn complain(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Writes what was asked for to stdout. A reader that has seen enough (`| head`) is no failure.
fn show(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("rdzv: write to stdout: {error}"));
            Exit::Failure.into()
        }
        _ => Exit::Success.into(),
    }
}
