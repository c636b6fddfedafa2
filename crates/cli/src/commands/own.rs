//! Our own commands: reading their flags, and answering a wrong line with one sentence.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::{complain, completions, environment, store};
use crate::args::program::{OwnArgs, OwnCommand};
use crate::exit::Exit;
use crate::observe::log;

/// Runs the command that the words name.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    let level = std::env::var(rdzv_core::env::LOGLEVEL).ok();
    match log::level(level.as_deref()) {
        Ok(level) => log::install(level),
        Err(raised) => {
            complain(&format!("rdzv: {raised}"));
            return Exit::Usage.into();
        }
    }
    let line = std::iter::once(OsString::from("rdzv")).chain(words.iter().cloned());
    let command = match OwnArgs::try_parse_from(line) {
        Ok(own) => own.command,
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return Exit::Success.into();
        }
        Err(error) => {
            complain(&sentence(&error));
            return Exit::Usage.into();
        }
    };
    match command {
        OwnCommand::Run(_) | OwnCommand::LaunchCompat(_) => {
            unreachable!("a launch has a keeper and is no command of our own")
        }
        OwnCommand::Store(arguments) => store::run(&arguments),
        OwnCommand::Env => environment::print(),
        OwnCommand::Completions { shell } => completions::print(OwnArgs::command(), "rdzv", &shell),
    }
}

/// clap's paragraphs in one sentence; the help where nothing was asked for.
fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return text.trim_end().to_owned();
    }
    let first = text.lines().next().unwrap_or_default();
    let problem = first.strip_prefix("error: ").unwrap_or(first);
    format!("rdzv: {problem}; see `rdzv --help`")
}
