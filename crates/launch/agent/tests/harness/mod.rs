//! Starts `agent_harness` and reads what it says.
#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "this is all test code")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rdzv_testing::{DEADLINE, Process, pids as processes};
use rustix::process::Signal;
use tempfile::TempDir;

/// A running harness. The agent clears the workers if the test fails and this is dropped.
pub(crate) struct Harness {
    process: Process,
    /// Lines of stderr up to the last one that was waited for.
    pub(crate) said: Vec<String>,
    /// A directory for the test's own files; workers find it as `$DIR`.
    pub(crate) directory: TempDir,
}

/// How a harness ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    /// All lines of stderr.
    pub(crate) said: Vec<String>,
    pub(crate) directory: TempDir,
}

pub(crate) fn program() -> PathBuf {
    rdzv_testing::program("agent_harness")
}

/// Starts workers that run a shell script.
pub(crate) fn start(options: &[&str], script: &str) -> Harness {
    start_after("", options, script)
}

/// The same from a shell that does something first, in its own process.
pub(crate) fn start_after(first: &str, options: &[&str], script: &str) -> Harness {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{first}\nexec \"$@\""), "sh"]);
    command.arg(program()).args(options);
    // In arguments `$$` means `$`.
    command.args(["--", "/bin/sh", "-c", &script.replace("$$", "$$$$")]);
    start_command(command)
}

pub(crate) fn start_program(options: &[&str], worker: &[&str]) -> Harness {
    let mut command = Command::new(program());
    command.args(options).arg("--").args(worker);
    start_command(command)
}

fn start_command(mut command: Command) -> Harness {
    let directory = tempfile::tempdir().unwrap();
    command
        .env("DIR", directory.path())
        .env("TMPDIR", directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Harness {
        process: Process::start(&mut command),
        said: Vec::new(),
        directory,
    }
}

impl Harness {
    /// Waits for a line of stderr with this beginning, and returns its rest.
    pub(crate) fn wait_for(&mut self, beginning: &str) -> String {
        loop {
            let Ok(line) = self.process.stderr.line_within(DEADLINE) else {
                panic!("no {beginning:?} among {:#?}", self.said);
            };
            let rest = line.strip_prefix(beginning).map(str::to_owned);
            self.said.push(line);
            if let Some(rest) = rest {
                return rest;
            }
        }
    }

    pub(crate) fn keeper(&self) -> i32 {
        self.process.pid()
    }

    pub(crate) fn guard(&self) -> i32 {
        processes::guard(self.keeper()).unwrap()
    }

    pub(crate) fn agent(&self) -> i32 {
        processes::agent(self.keeper()).unwrap()
    }

    pub(crate) fn signal(&self, to: i32, signal: Signal) {
        processes::kill(to, signal);
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.process.wait();
        while let Ok(line) = self.process.stderr.line_within(DEADLINE) {
            self.said.push(line);
        }
        Ended {
            status,
            stdout: self.process.stdout.all(),
            said: self.said,
            directory: self.directory,
        }
    }
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub(crate) fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// The rests of all lines with this beginning.
    pub(crate) fn all(&self, beginning: &str) -> Vec<&str> {
        self.said
            .iter()
            .filter_map(|line| line.strip_prefix(beginning))
            .collect()
    }

    #[track_caller]
    pub(crate) fn assert_said(&self, beginning: &str) {
        assert!(
            self.said.iter().any(|line| line.starts_with(beginning)),
            "no {beginning:?} among {:#?}",
            self.said
        );
    }

    /// The process ids that scripts appended to `$DIR/pids`.
    pub(crate) fn pids(&self) -> Vec<i32> {
        pids(self.directory.path())
    }

    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, expected: usize) {
        let pids = self.pids();
        assert_eq!(pids.len(), expected, "{:#?}", self.said);
        for pid in pids {
            assert_eq!(processes::state(pid), None, "{pid} is still there");
        }
    }
}

pub(crate) fn pids(directory: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(directory.join("pids")).unwrap_or_default();
    text.split_whitespace().map(pid).collect()
}

pub(crate) fn pid(text: &str) -> i32 {
    text.parse().unwrap()
}
