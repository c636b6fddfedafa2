//! A program that a test starts.

use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, ExitStatus};
use std::sync::{Mutex, Once};
use std::time::Duration;

use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::{DEADLINE, NoLine, Stream, pids};

/// A running program. It is killed and reaped on drop.
pub struct Process {
    child: Child,
    stdin: Mutex<Option<ChildStdin>>,
    /// Standard output of the program, if it is a pipe.
    pub stdout: Stream,
    /// Standard error of the program, if it is a pipe.
    pub stderr: Stream,
}

impl Process {
    /// Starts a program.
    /// The program does not inherit ignored termination signals from the tests.
    pub fn start(command: &mut Command) -> Self {
        default_dispositions();
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            stdin: Mutex::new(child.stdin.take()),
            stdout: child.stdout.take().map_or_else(Stream::empty, Stream::new),
            stderr: child.stderr.take().map_or_else(Stream::empty, Stream::new),
            child,
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Writes a line to standard input.
    #[track_caller]
    pub fn send(&self, line: &str) {
        let mut stdin = self.stdin.lock().unwrap();
        let written = writeln!(stdin.as_mut().unwrap(), "{line}");
        written.unwrap_or_else(|error| panic!("{line:?} cannot be sent: {error}"));
    }

    /// Closes standard input.
    pub fn close_stdin(&self) {
        *self.stdin.lock().unwrap() = None;
    }

    /// Returns the next line of standard output.
    #[track_caller]
    pub fn line(&self) -> String {
        match self.stdout.line_within(DEADLINE) {
            Ok(line) => line,
            Err(NoLine::Timeout) => panic!("no line within {DEADLINE:?}"),
            Err(NoLine::End) => panic!("it has ended instead of writing a line"),
        }
    }

    /// Sends a line and returns the next line of standard output.
    #[track_caller]
    pub fn ask(&self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        pids::kill(self.pid(), signal);
    }

    /// Kills and reaps the program.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns the exit status of the program if it has exited.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for the exit of the program, up to the limit.
    pub fn wait_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        pids::ends_within(self.pid(), limit).then(|| self.child.wait().unwrap())
    }

    /// Waits for the exit of the program.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_within(DEADLINE).unwrap_or_else(|| {
            let (stdout, stderr) = (self.stdout.so_far(), self.stderr.so_far());
            panic!("still running\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
        })
    }
}

/// Installs handlers for termination signals that the test program ignores.
/// `execve` resets handlers, but keeps ignored signals ignored. (`nohup cargo test &` ignores
/// SIGINT, SIGQUIT and SIGHUP.)
fn default_dispositions() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        let _inside = runtime.enter();
        for number in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].map(Signal::as_raw) {
            if ignored & (1 << (number - 1)) != 0 {
                // The handler stays when the stream is dropped.
                drop(signal(SignalKind::from_raw(number)).unwrap());
            }
        }
    });
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls fail only if the program has exited and is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// Runs inside the next test, in a process that ignores signals.
    #[test]
    #[ignore = "it is for a process that ignores signals"]
    fn the_mask_of_a_child() {
        let mut child = Command::new("/bin/sh");
        child.args(["-c", "grep SigIgn /proc/self/status"]);
        let mut child = Process::start(child.stdout(Stdio::piped()));
        let line = child.line();
        child.wait();
        let mask = line.trim().strip_prefix("SigIgn:").unwrap();
        let ignored = u64::from_str_radix(mask.trim(), 16).unwrap();
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
            assert_eq!(ignored & (1 << (signal.as_raw() - 1)), 0, "{line}");
        }
    }

    #[test]
    fn a_program_ignores_no_signal_although_the_tests_do() {
        let mut inner = Command::new("/bin/sh");
        inner.args(["-c", "trap '' HUP INT QUIT; exec \"$0\" \"$@\""]);
        inner.arg(std::env::current_exe().unwrap());
        inner.args(["--ignored", "the_mask_of_a_child"]);
        let mut inner = Process::start(inner.stdout(Stdio::piped()));
        let status = inner.wait();
        let said = inner.stdout.all();
        assert!(status.success() && said.contains("1 passed"), "{said}");
    }
}
