//! Starting the program under test, waiting for it with a deadline, and making sure that nothing
//! of it is left.

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

/// The scripted worker.
pub(crate) fn fixture_worker() -> OsString {
    rdzv_testing::program("fixture_worker").into()
}

/// Asks at intervals until there is an answer, for events that are not announced. If there is none in time, shows the
/// last error.
#[track_caller]
pub(crate) fn poll<T, E: Debug>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < until, "{error:?}"),
        }
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// The same for a condition.
#[track_caller]
pub(crate) fn poll_until(what: &str, mut holds: impl FnMut() -> bool) {
    poll(|| if holds() { Ok(()) } else { Err(what) });
}

/// A launch to be: program, arguments, environment, and a directory of its own to run in.
pub(crate) struct Job {
    command: Command,
    pub(crate) directory: TempDir,
    marker: Marker,
}

/// `rdzv` with these arguments.
pub(crate) fn rdzv<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Job {
    Job::new(Path::new(env!("CARGO_BIN_EXE_rdzv"))).args(arguments)
}

/// A link named `torchrun` with these arguments.
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

/// A shell script that finds the program in `$RDZV`.
pub(crate) fn shell(script: &str) -> Job {
    Job::new(Path::new("/bin/sh"))
        .env("RDZV", env!("CARGO_BIN_EXE_rdzv"))
        .args(["-c", script])
}

/// `rdzv run` with these arguments and a shell script as the worker.
pub(crate) fn run_shell(flags: impl Words, script: &str) -> Job {
    rdzv(["run"])
        .args(flags.words())
        .args(["--no-python", "sh", "-c", script])
}

/// The same from a shell that does something first, in the same process.
pub(crate) fn run_shell_after(first: &str, flags: impl Words, script: &str) -> Job {
    shell(&format!("{first}\nexec \"$RDZV\" run \"$@\""))
        .args(["sh"])
        .args(flags.words())
        .args(["--no-python", "sh", "-c", script])
}

/// `rdzv run` with these arguments and the scripted worker.
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
        // These tests look at torchrun's texts, also those of `rdzv run`; `face` is about our own.
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

    /// Lets `rdzv run` speak in its own form.
    pub(crate) fn own_face(mut self) -> Self {
        self.command.env_remove("RDZV_COMPAT_OUTPUT");
        self
    }

    /// Gives it this standard error.
    pub(crate) fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.command.stderr(stderr);
        self
    }

    /// A path inside the job's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file into the job's directory.
    pub(crate) fn file(self, name: &str, content: &str) -> Self {
        fs::write(self.path(name), content).unwrap();
        self
    }

    /// Makes a named pipe in the job's directory.
    pub(crate) fn pipe(self, name: &str) -> Self {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let file_type = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, self.path(name), file_type, mode, 0).unwrap();
        self
    }

    /// Starts it.
    pub(crate) fn start(mut self) -> Running {
        let started = Instant::now();
        Running {
            process: Process::start(&mut self.command),
            started,
            marker: self.marker,
            directory: Rc::new(self.directory),
        }
    }

    /// Runs it to its end.
    pub(crate) fn run(self) -> Ended {
        self.start().wait()
    }

    /// Runs it to its end and asserts the exit code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ended {
        self.run().expect(code)
    }
}

/// A job that is running.
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
    /// A path inside the job's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file of the job's directory, or a line to a named pipe there.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The address that a store names in its first line.
    pub(crate) fn address(&self) -> SocketAddr {
        self.stdout.await_text("\n", 1);
        let line = self.stdout.so_far();
        let address = line.strip_prefix("listening on ").unwrap();
        address.trim_end().parse().unwrap()
    }

    /// Waits until a port is listened at, which is not announced.
    pub(crate) fn listens_at(&self, port: u16) {
        poll_until("it listens at its port", || {
            assert!(!ends_within(self.pid(), Duration::ZERO));
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }

    /// Waits until this was written to stdout; false if the launcher ended instead.
    pub(crate) fn says_before_it_ends(&self, text: &str) -> bool {
        let until = Instant::now() + DEADLINE;
        while !self.stdout.so_far().contains(text) {
            assert!(Instant::now() < until, "neither ended nor said {text:?}");
            if ends_within(self.pid(), Duration::from_millis(2)) {
                return false;
            }
        }
        true
    }

    /// Waits for the launcher's end and for everything it wrote; then nothing may be left of it.
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

    /// Waits until every process of the job has ended, the launcher excepted.
    pub(crate) fn all_gone_within(&self, limit: Duration) -> bool {
        let left = self
            .marker
            .left_at(Instant::now() + limit, Some(self.pid()));
        left.is_empty()
    }

    /// Its processes: numbers and command lines.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        self.marker.processes()
    }

    /// The agent's process id.
    pub(crate) fn agent_pid(&self) -> i32 {
        pids::agent(self.pid()).unwrap()
    }

    /// The same, soon after the start: waits until there is one.
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

/// How a job ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) took: Duration,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) directory: Rc<TempDir>,
}

impl Ended {
    /// The exit code; minus the signal if one ended it.
    pub(crate) fn code(&self) -> i32 {
        match self.status.signal() {
            Some(signal) => -signal,
            None => self.status.code().unwrap(),
        }
    }

    /// Asserts the exit code, and shows the output if it is another.
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

    /// Asserts that this was written to stderr.
    #[track_caller]
    pub(crate) fn assert_stderr(&self, text: &str) {
        assert!(
            self.stderr.contains(text),
            "no {text:?} in\n{}",
            self.stderr
        );
    }

    /// Asserts that this was written to stdout.
    #[track_caller]
    pub(crate) fn assert_stdout(&self, text: &str) {
        assert!(
            self.stdout.contains(text),
            "no {text:?} in\n{}",
            self.stdout
        );
    }

    /// Lines of stdout in alphabetical order: workers write in no order.
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

    /// A path inside the job's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Text of a file in the job's directory.
    #[track_caller]
    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Content of a file of JSON in the job's directory.
    #[track_caller]
    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap()
    }

    /// All files below a directory of the job, as relative paths in alphabetical order.
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

    /// Content of the file whose path ends so, below a directory of the job.
    #[track_caller]
    pub(crate) fn content(&self, directory: &str, name: &str) -> String {
        let paths = self.files_below(directory);
        let path = paths.iter().find(|path| path.ends_with(name));
        let path = path.unwrap_or_else(|| panic!("there is no {name}, but {paths:?}"));
        fs::read_to_string(self.path(directory).join(path)).unwrap()
    }
}
