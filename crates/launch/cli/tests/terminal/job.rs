//! A launch on a terminal, in a directory of its own.

use std::ffi::OsStr;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rdzv_testing::{DEADLINE, Marker, Terminal, Words, pids};
use tempfile::TempDir;

/// A launch to be.
pub(crate) struct Job {
    command: Command,
    directory: TempDir,
    marker: Marker,
}

/// `rdzv run` with these flags and this shell script as the worker.
pub(crate) fn run_shell(flags: impl Words, script: &str) -> Job {
    program(env!("CARGO_BIN_EXE_rdzv"))
        .args(["run"])
        .args(flags.words())
        .args(["--no-python", "sh", "-c", script])
}

/// `rdzv run` with these flags and this Python program as the worker.
pub(crate) fn run_python(flags: impl Words, script: &str) -> Job {
    let job = program(env!("CARGO_BIN_EXE_rdzv"));
    fs::write(job.path("train.py"), script).unwrap();
    job.args(["run"])
        .args(flags.words())
        .args(["--no-python", "python3", "train.py"])
}

/// A shell that finds the program in `$RDZV`.
pub(crate) fn shell(arguments: &[&str]) -> Job {
    program("bash")
        .env("RDZV", env!("CARGO_BIN_EXE_rdzv"))
        .args(arguments)
}

fn program(program: &str) -> Job {
    let (marker, directory) = (Marker::new(), tempfile::tempdir().unwrap());
    let mut command = Terminal::command(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", directory.path())
        .env("TMPDIR", directory.path())
        .env("TERM", "xterm-256color")
        .env("OMP_NUM_THREADS", "1")
        .env("LC_ALL", "C.UTF-8")
        .current_dir(directory.path());
    marker.mark(&mut command);
    Job {
        command,
        directory,
        marker,
    }
}

impl Job {
    pub(crate) fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    /// On a machine with this name. `None` where it cannot have another one and that was accepted.
    #[track_caller]
    pub(crate) fn on_machine(self, name: &str) -> Option<Self> {
        let rename = format!("echo {name} > /proc/sys/kernel/hostname && exec \"$0\" \"$@\"");
        let enter = ["--user", "--map-root-user", "--uts", "sh", "-c"];
        let tried = Command::new("unshare")
            .args(enter)
            .args([&rename, "true"])
            .status();
        if !tried.is_ok_and(|status| status.success()) {
            assert!(
                std::env::var_os("RDZV_TEST_NO_NAMESPACES").is_some(),
                "no namespaces here: unshare --user --uts failed"
            );
            eprintln!(
                "NOT TESTED: screens with a name of the machine, because there are no namespaces"
            );
            return None;
        }
        let mut command = Terminal::command("unshare");
        command.args(enter).arg(rename);
        // Behind `setsid --ctty`.
        command.args(self.command.get_args().skip(1));
        let variables = self.command.get_envs();
        command
            .env_clear()
            .envs(variables.filter_map(|(name, value)| Some((name, value?))))
            .current_dir(self.directory.path());
        Some(Self { command, ..self })
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts it on a terminal of 80 columns and 24 rows.
    pub(crate) fn start(self) -> Running {
        self.start_on(80, 24)
    }

    pub(crate) fn start_on(self, columns: u16, rows: u16) -> Running {
        Running {
            terminal: Terminal::start(self.command, columns, rows),
            directory: self.directory,
            marker: self.marker,
        }
    }
}

/// A launch that is running.
pub(crate) struct Running {
    terminal: Terminal,
    directory: TempDir,
    marker: Marker,
}

impl Running {
    /// A path in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until there is this file in its directory.
    #[track_caller]
    pub(crate) fn wait_for_file(&self, name: &str) {
        let until = Instant::now() + DEADLINE;
        while !self.path(name).exists() {
            assert!(
                Instant::now() < until,
                "no {name}:\n{}",
                self.screen().join("\n")
            );
            // Files are not announced to us; the end of the program is, and is no success.
            assert!(!pids::ends_within(self.pid(), Duration::from_millis(2)));
        }
    }

    /// Its process with this in its command line.
    pub(crate) fn process(&self, name: &str) -> i32 {
        let processes = self.marker.processes();
        let found = processes.iter().find(|(_, line)| line.contains(name));
        found
            .unwrap_or_else(|| panic!("no {name} in {processes:?}"))
            .0
    }

    /// Kills all of it.
    pub(crate) fn kill(&self) {
        self.marker.kill_all();
    }

    /// Waits for its end, after which nothing of it is left: exit code and all lines.
    #[track_caller]
    pub(crate) fn end(mut self) -> (Option<i32>, Vec<String>) {
        let status = self.terminal.wait();
        self.end_after(status)
    }

    /// The same of one that has ended.
    #[track_caller]
    pub(crate) fn end_after(self, status: ExitStatus) -> (Option<i32>, Vec<String>) {
        let left = self.marker.processes();
        let lines = self.terminal.lines();
        assert!(
            left.is_empty(),
            "left behind: {left:?}\n{}",
            lines.join("\n")
        );
        (status.code(), lines)
    }

    /// The same, if it succeeds.
    #[track_caller]
    pub(crate) fn lines_of_success(self) -> Vec<String> {
        let (code, lines) = self.end();
        assert_eq!(code, Some(0), "{}", lines.join("\n"));
        lines
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.marker.kill_all();
    }
}

impl Deref for Running {
    type Target = Terminal;

    fn deref(&self) -> &Terminal {
        &self.terminal
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Terminal {
        &mut self.terminal
    }
}

/// Whether one of the lines is exactly this one.
pub(crate) fn has(lines: &[String], line: &str) -> bool {
    lines.iter().any(|other| other == line)
}
