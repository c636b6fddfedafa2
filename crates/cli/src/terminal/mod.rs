//! Writing to stdout and stderr, where a reader that went away is no reason to panic, and one that
//! does not read is no reason to stop supervising.

mod lines;

use std::io::{self, Write};
use std::process::ExitCode;

pub(crate) use self::lines::{LineWriter, finish_lines, start_lines};
use crate::exit::Exit;

/// Writes a text and a newline to stderr, in one piece. If that fails there is nobody left to tell.
pub(crate) fn complain(text: &str) {
    let _ = LineWriter.write_all(format!("{text}\n").as_bytes());
}

/// Writes what was asked for to stdout. A reader that has seen enough (`| head`) is no failure.
pub(crate) fn show(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("rdzv: write to stdout: {error}"));
            Exit::Failure.into()
        }
        _ => Exit::Success.into(),
    }
}
