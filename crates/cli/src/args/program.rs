//! The names that the program answers to, and its own commands.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

use super::run::{LaunchArgs, RunArgs};
use super::store::StoreArgs;
use crate::demo::args::{DemoArgs, DemoWorkerArgs};

/// The commands of `rdzv`.
#[derive(Debug, Parser)]
#[command(
    name = "rdzv",
    version,
    about = "The control plane of distributed training",
    after_help = "A link to this program named `torchrun` behaves as `torchrun`, that is, as `rdzv run`.",
    arg_required_else_help = true
)]
pub(crate) struct OwnArgs {
    #[command(subcommand)]
    pub(crate) command: OwnCommand,
}

/// One command of `rdzv`.
#[derive(Debug, Subcommand)]
pub(crate) enum OwnCommand {
    /// Start and supervise the workers of this node (as torchrun does)
    Run(RunArgs),
    /// The same with the conventions of the older `python -m torch.distributed.launch`
    LaunchCompat(LaunchArgs),
    /// Run a key/value store that PyTorch's TCPStore clients can use
    Store(StoreArgs),
    Demo(DemoArgs),
    #[command(hide = true)]
    DemoWorker(DemoWorkerArgs),
    /// List the environment variables that are read or set
    Env,
    /// Print a completion script for a shell
    Completions {
        /// bash, zsh, fish, elvish, powershell or tcsh
        #[arg(value_parser = ["bash", "zsh", "fish", "elvish", "powershell", "tcsh"])]
        shell: String,
    },
}

/// The three ways to launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Launcher {
    /// `rdzv run`.
    Run,
    /// A link named `torchrun`.
    Torchrun,
    /// `rdzv launch-compat`.
    LaunchCompat,
}

impl Launcher {
    /// Its name in usage lines.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Run => "rdzv run",
            Self::Torchrun => "torchrun",
            Self::LaunchCompat => "rdzv launch-compat",
        }
    }
}

/// What this process was asked to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// A launcher, with the words that are its own. Nothing is parsed here: the first process of a
    /// launch needs to know no more, and a wrong line is reported once, by the second.
    Launch(Launcher, Vec<OsString>),
    /// One of our own commands, with all words but the program's name.
    Own(Vec<OsString>),
}

impl Program {
    /// Decides from the name it was called by and the words behind it.
    pub(crate) fn of(called: &OsStr, mut words: Vec<OsString>) -> Self {
        let first = words.first().and_then(|word| word.to_str());
        let launcher = match (is_torchrun(called), first) {
            (true, _) => return Self::Launch(Launcher::Torchrun, words),
            (false, Some("run")) => Launcher::Run,
            (false, Some("launch-compat")) => Launcher::LaunchCompat,
            _ => return Self::Own(words),
        };
        words.remove(0);
        Self::Launch(launcher, words)
    }
}

/// Whether this name is that of a link named `torchrun`.
fn is_torchrun(called: &OsStr) -> bool {
    Path::new(called).file_name() == Some(OsStr::new("torchrun"))
}

/// The directory of the link that the program was called by.
pub(crate) fn link_directory(called: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if !is_torchrun(called) {
        return None;
    }
    let called = Path::new(called);
    if called.components().count() > 1 {
        let directory = called.parent()?;
        return std::path::absolute(directory).ok();
    }
    std::env::split_paths(path?).find(|directory| directory.join(called).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(line: &[&str]) -> Program {
        let words = line[1..].iter().map(OsString::from).collect();
        Program::of(OsStr::new(line[0]), words)
    }

    fn launch(launcher: Launcher, words: &[&str]) -> Program {
        Program::Launch(launcher, words.iter().map(OsString::from).collect())
    }

    #[test]
    fn launchers_get_the_words_that_are_their_own() {
        assert_eq!(
            program(&["rdzv", "run", "-m", "x"]),
            launch(Launcher::Run, &["-m", "x"])
        );
        assert_eq!(
            program(&["/venv/bin/torchrun", "run", "x"]),
            launch(Launcher::Torchrun, &["run", "x"])
        );
        assert_eq!(
            program(&["rdzv", "launch-compat", "s.py"]),
            launch(Launcher::LaunchCompat, &["s.py"])
        );
    }

    #[test]
    fn everything_else_is_our_own() {
        for words in [&["store", "run"][..], &[]] {
            let line = [&["rdzv"], words].concat();
            let words = words.iter().map(OsString::from).collect();
            assert_eq!(program(&line), Program::Own(words));
        }
    }
}
