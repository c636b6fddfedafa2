//! Choice of the command: by the name of the program, or by its first argument.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The three commands that launch workers.
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
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Run => "rdzv run",
            Self::Torchrun => "torchrun",
            Self::LaunchCompat => "rdzv launch-compat",
        }
    }
}

/// Command that this process runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// A launcher, with its words.
    ///
    /// The arguments are not parsed yet. The agent parses them, so that a wrong line is reported
    /// once. The keeper needs them only for its own messages, and to report a killed agent.
    Launch(Launcher, Vec<OsString>),
    /// Any other command of rdzv, with all arguments.
    Own(Vec<OsString>),
}

impl Program {
    /// Chooses the command by the program's name and its arguments.
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

/// `true` if the program was started through a link named `torchrun`.
fn is_torchrun(called: &OsStr) -> bool {
    Path::new(called).file_name() == Some(OsStr::new("torchrun"))
}

/// Returns the directory of the link `torchrun`, if it started the program.
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

/// Returns the directory of this program, with links resolved.
pub(crate) fn own_directory() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.parent().map(Path::to_owned)
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
