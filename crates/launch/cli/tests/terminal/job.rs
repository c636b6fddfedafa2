//! Launch on a terminal, in a separate directory.

use std::ffi::OsStr;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rdzv_testing::{DEADLINE, Marker, Terminal, Words, pids};
use tempfile::TempDir;

/// Launch that has not started.
pub(crate) struct Job {
    command: Command,
    directory: TempDir,
    marker: Marker,
}

/// Returns `rdzv run` with these flags and this shell script as the worker.
pub(crate) fn run_shell(flags: impl Words, script: &str) -> Job {
    program(env!("CARGO_BIN_EXE_rdzv"))
        .args(["run"])
        .args(flags.words())
        .args(["--no-python", "sh", "-c", script])
}

/// Returns `rdzv run` with these flags and this Python program as the worker.
pub(crate) fn run_python(flags: impl Words, script: &str) -> Job {
    let job = program(env!("CARGO_BIN_EXE_rdzv"));
    fs::write(job.path("train.py"), script).unwrap();
    job.args(["run"])
        .args(flags.words())
        .args(["--no-python", "python3", "train.py"])
}

/// Returns a shell with the path of the program in `$RDZV`.
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

    /// Gives the machine another name for this launch.
    ///
    /// `None` if that is impossible here and a variable accepts it.
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
        // The command follows `setsid --ctty`.
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

    /// Starts the launch on a terminal of 80 columns and 24 rows.
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

/// Running launch.
pub(crate) struct Running {
    terminal: Terminal,
    directory: TempDir,
    marker: Marker,
}

impl Running {
    /// Returns a path in the directory of the launch.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until this file exists in the directory of the launch.
    #[track_caller]
    pub(crate) fn wait_for_file(&self, name: &str) {
        let deadline = Instant::now() + DEADLINE;
        while !self.path(name).exists() {
            assert!(
                Instant::now() < deadline,
                "no {name}:\n{}",
                self.screen().join("\n")
            );
            // The test polls for the file, but fails immediately if the program exits.
            assert!(!pids::ends_within(self.pid(), Duration::from_millis(2)));
        }
    }

    /// Returns the process with this text in its command line.
    pub(crate) fn process(&self, name: &str) -> i32 {
        let processes = self.marker.processes();
        let found = processes.iter().find(|(_, line)| line.contains(name));
        found
            .unwrap_or_else(|| panic!("no {name} in {processes:?}"))
            .0
    }

    /// Kills all processes of the launch.
    pub(crate) fn kill(&self) {
        self.marker.kill_all();
    }

    /// Waits for the exit, and returns the exit code and all lines.
    ///
    /// Asserts that no process is left.
    #[track_caller]
    pub(crate) fn end(mut self) -> (Option<i32>, Vec<String>) {
        let status = self.terminal.wait();
        self.end_after(status)
    }

    /// Returns exit code and lines of a launch that has already exited.
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

    /// Waits for a successful exit, and returns all lines.
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

/// `true` if one of the lines is equal to `line`.
pub(crate) fn has(lines: &[String], line: &str) -> bool {
    lines.iter().any(|other| other == line)
}
