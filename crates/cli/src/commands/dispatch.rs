//! Which command a process was asked for.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use super::{own, run};
use crate::args::Program;

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
