//! A program that a test starts.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, ExitStatus};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;

use crate::{DEADLINE, NoLine, Stream, pids};

/// A running program. It is killed and reaped on drop.
pub struct Process {
    child: Child,
    stdin: Mutex<Option<ChildStdin>>,
    /// Its standard output, if that is a pipe.
    pub stdout: Stream,
    /// Its standard error, if that is a pipe.
    pub stderr: Stream,
}

impl Process {
    /// Starts a program.
    pub fn start(command: &mut Command) -> Self {
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

    /// The process id.
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

    /// The next line of standard output.
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

    /// Signals it.
    pub fn signal(&self, signal: Signal) {
        pids::kill(self.pid(), signal);
    }

    /// Kills and reaps it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its exit status if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end, up to the limit.
    pub fn wait_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        pids::ends_within(self.pid(), limit).then(|| self.child.wait().unwrap())
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_within(DEADLINE).unwrap_or_else(|| {
            let (stdout, stderr) = (self.stdout.so_far(), self.stderr.so_far());
            panic!("still running\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended and is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
