//! Starts `examples/agent_harness` and reads what it says.
#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "this is all test code")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, test_kill_process};
use tempfile::TempDir;

/// Longer than anything here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running harness.
pub(crate) struct Harness {
    child: Running,
    stdout: Option<JoinHandle<String>>,
    lines: Receiver<String>,
    /// What has been waited for, and all before it.
    pub(crate) said: Vec<String>,
    /// A directory for the test's own files; workers find it as `$DIR`.
    pub(crate) directory: TempDir,
}

/// Ends with its test, also if that fails; the agent then clears the workers.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let program = profile.join("examples/agent_harness");
    assert!(
        program.exists(),
        "`cargo test` builds the examples, but not for a single test file: \
         cargo build -p rdzv-agent --examples"
    );
    program
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
    let mut child = command
        .env("DIR", directory.path())
        .env("TMPDIR", directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let stdout = thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    });
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in stderr.lines() {
            let _ = sender.send(line.unwrap());
        }
    });
    Harness {
        child: Running(child),
        stdout: Some(stdout),
        lines,
        said: Vec::new(),
        directory,
    }
}

impl Harness {
    /// Waits for a line of stderr with this beginning, and returns its rest.
    pub(crate) fn wait_for(&mut self, beginning: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no {beginning:?} among {:#?}", self.said);
            };
            let rest = line.strip_prefix(beginning).map(str::to_owned);
            self.said.push(line);
            if let Some(rest) = rest {
                return rest;
            }
        }
    }

    pub(crate) fn keeper(&self) -> Pid {
        Pid::from_child(&self.child.0)
    }

    /// The keeper's one child.
    pub(crate) fn agent(&self) -> Pid {
        let keeper = self.child.0.id();
        let children =
            std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
        pid(children.trim())
    }

    pub(crate) fn signal(&self, to: Pid, signal: Signal) {
        kill_process(to, signal).unwrap();
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Ended {
        assert!(
            gone(self.keeper(), PATIENCE),
            "the harness did not end: {:#?}",
            self.lines.try_iter().collect::<Vec<_>>()
        );
        self.said.extend(self.lines.iter());
        Ended {
            status: self.child.0.wait().unwrap(),
            stdout: self.stdout.take().unwrap().join().unwrap(),
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
    pub(crate) fn pids(&self) -> Vec<Pid> {
        pids(self.directory.path())
    }

    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, expected: usize) {
        let pids = self.pids();
        assert_eq!(pids.len(), expected, "{:#?}", self.said);
        for pid in pids {
            assert!(test_kill_process(pid).is_err(), "{pid:?} is still there");
        }
    }
}

pub(crate) fn pids(directory: &Path) -> Vec<Pid> {
    let text = std::fs::read_to_string(directory.join("pids")).unwrap_or_default();
    text.split_whitespace().map(pid).collect()
}

pub(crate) fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().unwrap()).unwrap()
}

/// The letter for what a process is doing; none if it is gone.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.chars().next()
}

/// Waits until a process has this letter.
#[track_caller]
pub(crate) fn wait_for_state(pid: Pid, letter: char) {
    // The kernel tells this to parents only, so the test asks again and again.
    let until = Instant::now() + PATIENCE;
    while state(pid) != Some(letter) {
        assert!(Instant::now() < until, "{pid:?} is {:?}", state(pid));
        assert!(!gone(pid, Duration::from_millis(2)), "{pid:?} is gone");
    }
}

/// Waits until a process is gone; false if that takes longer than `within`.
pub(crate) fn gone(pid: Pid, within: Duration) -> bool {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    let within = Timespec::try_from(within).unwrap();
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&within)).unwrap() == 1
}
