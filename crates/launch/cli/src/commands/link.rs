//! `rdzv link`: creates a link named `torchrun` to this program.

use std::io::{Error, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::exit::Exit;
use crate::terminal::{complain, show};

/// Name under which this program acts as PyTorch's launcher.
const NAME: &str = "torchrun";

/// Create a link named `torchrun` to this program.
///
/// Through the link, the program behaves as PyTorch's torchrun. An existing file is never
/// overwritten.
#[derive(Debug, Args)]
pub(super) struct LinkArgs {
    /// Existing directory for the link (default: the directory of this program)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn run(arguments: &LinkArgs) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return refuse(&format!("cannot find the path of this program: {error}")),
    };
    let beside = program.parent().unwrap_or(Path::new("/"));
    let link = arguments.dir.as_deref().unwrap_or(beside).join(NAME);
    match symlink(&program, &link) {
        Ok(()) => show(&format!(
            "created a link from {} to {}\n",
            link.display(),
            program.display()
        )),
        Err(error) => refuse(&problem(&link, &error)),
    }
}

fn problem(link: &Path, error: &Error) -> String {
    let link = link.display();
    match error.kind() {
        ErrorKind::AlreadyExists => {
            format!("{link} already exists; remove it, or specify another directory with --dir")
        }
        _ => format!("cannot create {link}: {error}"),
    }
}

fn refuse(problem: &str) -> ExitCode {
    complain(&format!("rdzv link: {problem}"));
    Exit::Failure.into()
}
