//! Harness for the program under test.
//!
//! The harness starts the program, waits for it with a deadline, and asserts that no process is
//! left.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_testing::pids;
pub(crate) use rdzv_testing::pids::{ends_within, kill};
pub(crate) use rdzv_testing::{DEADLINE, free_port};
use rdzv_testing::{Marker, Process, Words};
use serde_json::Value;
use tempfile::TempDir;

/// Returns the path of the scripted worker.
pub(crate) fn fixture_worker() -> OsString {
    rdzv_testing::program("fixture_worker").into()
}

/// Polls until there is an answer; after the deadline, panics with the error.
#[track_caller]
pub(crate) fn poll<T, E: Debug>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// Polls until a condition holds.
#[track_caller]
pub(crate) fn poll_for(what: &str, mut holds: impl FnMut() -> bool) {
    poll(|| if holds() { Ok(()) } else { Err(what) });
}

/// Launch that has not started: program, arguments, environment, directory.
pub(crate) struct Job {
    command: Command,
    pub(crate) directory: TempDir,
    marker: Marker,
}

/// Returns `rdzv` with these arguments.
pub(crate) fn rdzv<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Job {
    Job::new(Path::new(env!("CARGO_BIN_EXE_rdzv"))).args(arguments)
}

/// Returns a link named `torchrun` with these arguments.
pub(crate) fn torchrun<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Job {
    let job = Job::new(Path::new("bin/torchrun"));
    fs::create_dir(job.path("bin")).unwrap();
    let link = job.path("bin/torchrun");
    symlink(env!("CARGO_BIN_EXE_rdzv"), &link).unwrap();
    Job {
        command: prepared(&link, &job.directory, &job.marker),
        ..job
    }
    .args(arguments)
}

/// Returns a shell script with the path of the program in `$RDZV`.
pub(crate) fn shell(script: &str) -> Job {
    Job::new(Path::new("/bin/sh"))
        .env("RDZV", env!("CARGO_BIN_EXE_rdzv"))
        .args(["-c", script])
}

/// Returns `rdzv run` with these arguments and a shell script as the worker.
pub(crate) fn run_shell(flags: impl Words, script: &str) -> Job {
    rdzv(["run"])
        .args(flags.words())
        .args(["--no-python", "sh", "-c", script])
}

/// Returns the same launch after other shell commands, in the same process.
pub(crate) fn run_shell_after(first: &str, flags: impl Words, script: &str) -> Job {
    shell(&format!("{first}\nexec \"$RDZV\" run \"$@\""))
        .args(["sh"])
        .args(flags.words())
        .args(["--no-python", "sh", "-c", script])
}

/// Returns `rdzv run` with these arguments and the scripted worker.
pub(crate) fn run_fixture(flags: impl Words, steps: impl Words) -> Job {
    rdzv(["run"])
        .args(flags.words())
        .args(["--no-python"])
        .args([fixture_worker()])
        .args(steps.words())
}

fn prepared(program: &Path, directory: &TempDir, marker: &Marker) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", std::env::var_os("HOME").unwrap_or_default())
        .env("TMPDIR", directory.path())
        .env("TZ", "UTC")
        // Most tests check torchrun's texts, even under `rdzv run`; `face` checks rdzv's texts.
        .env("RDZV_COMPAT_OUTPUT", "1")
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    marker.mark(&mut command);
    command
}

impl Job {
    fn new(program: &Path) -> Self {
        let marker = Marker::new();
        let directory = tempfile::tempdir().unwrap();
        Self {
            command: prepared(program, &directory, &marker),
            directory,
            marker,
        }
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Lets `rdzv run` print in its own style.
    pub(crate) fn own_face(mut self) -> Self {
        self.command.env_remove("RDZV_COMPAT_OUTPUT");
        self
    }

    /// Sets the stderr of the job.
    pub(crate) fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.command.stderr(stderr);
        self
    }

    /// Returns a path inside the job's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file into the job's directory.
    pub(crate) fn file(self, name: &str, content: &str) -> Self {
        fs::write(self.path(name), content).unwrap();
        self
    }

    /// Creates a named pipe in the job's directory.
    pub(crate) fn pipe(self, name: &str) -> Self {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let file_type = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, self.path(name), file_type, mode, 0).unwrap();
        self
    }

    /// Starts the job.
    pub(crate) fn start(mut self) -> Running {
        let started = Instant::now();
        Running {
            process: Process::start(&mut self.command),
            started,
            marker: self.marker,
            directory: Rc::new(self.directory),
        }
    }

    /// Runs the job to completion.
    pub(crate) fn run(self) -> Ended {
        self.start().wait()
    }

    /// Runs the job to completion, and asserts the exit code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ended {
        self.run().expect(code)
    }
}

/// Running job.
pub(crate) struct Running {
    process: Process,
    started: Instant,
    marker: Marker,
    directory: Rc<TempDir>,
}

impl Deref for Running {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Running {
    /// Returns a path inside the job's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file in the job's directory, or to a named pipe there.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Returns the address in the first line of a store.
    pub(crate) fn address(&self) -> SocketAddr {
        self.stdout.await_text("\n", 1);
        let line = self.stdout.so_far();
        let address = line.strip_prefix("listening on ").unwrap();
        address.trim_end().parse().unwrap()
    }

    /// Polls until the job listens at a port.
    pub(crate) fn listens_at(&self, port: u16) {
        poll_for("it listens at its port", || {
            assert!(!ends_within(self.pid(), Duration::ZERO));
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }

    /// Waits until stdout contains a text; `false` if the launcher exits first.
    pub(crate) fn says_before_it_ends(&self, text: &str) -> bool {
        let deadline = Instant::now() + DEADLINE;
        while !self.stdout.so_far().contains(text) {
            assert!(Instant::now() < deadline, "neither ended nor said {text:?}");
            if ends_within(self.pid(), Duration::from_millis(2)) {
                return false;
            }
        }
        true
    }

    /// Waits for the exit and the output, and asserts that no process is left.
    pub(crate) fn wait(mut self) -> Ended {
        let status = self.process.wait();
        let took = self.started.elapsed();
        let left = self.marker.processes();
        assert!(
            left.is_empty(),
            "left behind: {left:?}
{}",
            self.stderr.so_far()
        );
        Ended {
            status,
            took,
            stdout: self.stdout.all(),
            stderr: self.stderr.all(),
            directory: Rc::clone(&self.directory),
        }
    }

    /// Waits until every process of the job except the launcher has exited.
    pub(crate) fn all_gone_within(&self, limit: Duration) -> bool {
        let left = self
            .marker
            .left_at(Instant::now() + limit, Some(self.pid()));
        left.is_empty()
    }

    /// Returns the processes of the job: process ids and command lines.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        self.marker.processes()
    }

    /// Returns the agent's process id.
    pub(crate) fn agent_pid(&self) -> i32 {
        pids::agent(self.pid()).unwrap()
    }

    /// Waits for the agent after the start, and returns its process id.
    pub(crate) fn agent_pid_when_there(&self) -> i32 {
        pids::await_agent(self.pid())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.process.try_wait().is_none() {
            self.marker.kill_all();
        }
    }
}

/// Result of a job.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) took: Duration,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) directory: Rc<TempDir>,
}

impl Ended {
    /// Returns the exit code, or the negative signal that ended the job.
    pub(crate) fn code(&self) -> i32 {
        match self.status.signal() {
            Some(signal) => -signal,
            None => self.status.code().unwrap(),
        }
    }

    /// Asserts the exit code, and shows the output if it differs.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code(),
            code,
            "\n--- stdout\n{}\n--- stderr\n{}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that stderr contains a text.
    #[track_caller]
    pub(crate) fn assert_stderr(&self, text: &str) {
        assert!(
            self.stderr.contains(text),
            "no {text:?} in\n{}",
            self.stderr
        );
    }

    /// Asserts that stdout contains a text.
    #[track_caller]
    pub(crate) fn assert_stdout(&self, text: &str) {
        assert!(
            self.stdout.contains(text),
            "no {text:?} in\n{}",
            self.stdout
        );
    }

    /// Returns the lines of stdout in alphabetical order.
    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        lines.sort_unstable();
        lines
    }

    pub(crate) fn last_error_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    /// Asserts the beginning of the last line of stderr, and further parts of it.
    #[track_caller]
    pub(crate) fn assert_last_error(&self, beginning: &str, parts: &[&str]) {
        let last = self.last_error_line();
        assert!(last.starts_with(beginning), "{last:?}");
        for part in parts {
            assert!(last.contains(part), "no {part:?} in {last:?}");
        }
    }

    /// Returns a path inside the job's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the text of a file in the job's directory.
    #[track_caller]
    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Returns the content of a JSON file in the job's directory.
    #[track_caller]
    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap()
    }

    /// Returns all files below a directory of the job, as sorted relative paths.
    pub(crate) fn files_below(&self, name: &str) -> Vec<PathBuf> {
        let root = self.path(name);
        let mut found = Vec::new();
        let mut pending = vec![root.clone()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else {
                    found.push(path.strip_prefix(&root).unwrap().to_owned());
                }
            }
        }
        found.sort();
        found
    }

    /// Returns the content of the file whose path ends with `name`.
    #[track_caller]
    pub(crate) fn content(&self, directory: &str, name: &str) -> String {
        let paths = self.files_below(directory);
        let path = paths.iter().find(|path| path.ends_with(name));
        let path = path.unwrap_or_else(|| panic!("there is no {name}, but {paths:?}"));
        fs::read_to_string(self.path(directory).join(path)).unwrap()
    }
}
