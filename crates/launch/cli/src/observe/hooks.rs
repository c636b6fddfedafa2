//! Commands of `--on-restart` and `--on-failure`, which get the report as JSON.

use std::fs::File;
use std::io::{self, PipeReader, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rdzv_agent::AgentEvent;
use rdzv_agent::observe::{EventSink, NodeReport};
use rdzv_agent_proto::hang::line_splitter::{LONGEST_LINE, LineSplitter, SplitLine};
use rdzv_core::escape::escape_bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::launch::Hook;
use crate::report::Document;
use crate::terminal::complain;

/// Time limit for the exit of a killed command.
const REAP_WITHIN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Runs a command with a report on its stdin, and waits for its exit.
///
/// The command is killed at its time limit. Its output goes to stderr, line by line.
pub(crate) fn run(hook: &Hook, document: &Document) {
    let flag = hook.flag;
    let problem = match run_command(hook, &document.text()) {
        Ok(Some(status)) if status.success() => return,
        Ok(Some(status)) => format!("the command failed: {status}"),
        Ok(None) => format!(
            "the command did not exit within {} s and was killed (--hook-timeout)",
            hook.limit.as_secs_f64()
        ),
        Err(error) => format!("cannot run sh: {error}"),
    };
    complain(&format!("rdzv: {flag}: {problem}"));
}

fn run_command(hook: &Hook, text: &str) -> io::Result<Option<std::process::ExitStatus>> {
    let began = Instant::now();
    // A command that does not read its stdin must not block this thread, so stdin is a file.
    let mut stdin = File::from(memfd_create("report", MemfdFlags::CLOEXEC)?);
    stdin.write_all(text.as_bytes())?;
    stdin.rewind()?;
    let (mut output, writer) = io::pipe()?;
    let mut child = Command::new("sh")
        .args(["-c", &hook.command])
        .stdin(stdin)
        .stdout(writer.try_clone()?)
        .stderr(writer)
        // In the session of the agent, so the end of the workers does not end the command.
        .process_group(0)
        .spawn()?;
    let group = Pid::from_child(&child);
    let mut lines = LineSplitter::default();
    let pidfd = pidfd_open(group, PidfdFlags::empty())?;
    let exited = watch(&pidfd, &mut output, &mut lines, hook, began);
    // The last line may lack its line feed.
    show(hook, lines.feed(b"\n"));
    // This also ends the processes that the command has left in its group.
    let _ = kill_process_group(group, Signal::KILL);
    // SIGKILL does not end an uninterruptible sleep, so this wait has a limit.
    let _ = poll(
        &mut [PollFd::new(&pidfd, PollFlags::IN)],
        Some(&REAP_WITHIN),
    );
    let status = child.try_wait()?;
    let exited = exited?;
    Ok(status.filter(|_| exited))
}

/// Copies the output until the command exits.
///
/// Returns `false` if the command does not exit within its limit.
fn watch(
    pidfd: &OwnedFd,
    output: &mut PipeReader,
    lines: &mut LineSplitter,
    hook: &Hook,
    began: Instant,
) -> io::Result<bool> {
    let (mut buffer, mut is_open) = ([0; 4096], true);
    // Bytes that a pipe holds. After the exit, any more bytes are from another process.
    let mut rest = 1 << 16;
    loop {
        let left = hook.limit.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut events = [
            PollFd::new(pidfd, PollFlags::IN),
            PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN),
        ];
        let watched = if is_open {
            &mut events[..]
        } else {
            &mut events[..1]
        };
        match poll(watched, Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        let [exited, readable] = events.map(|event| !event.revents().is_empty());
        if is_open && readable && rest > 0 {
            let count = output.read(&mut buffer)?;
            is_open = count > 0;
            rest -= if exited { count.min(rest) } else { 0 };
            show(hook, lines.feed(&buffer[..count]));
        } else if exited {
            return Ok(true);
        }
    }
}

/// Prints lines of the output that are not empty.
fn show(hook: &Hook, lines: Vec<SplitLine>) {
    for line in lines {
        let text = match line {
            SplitLine::Whole(line) if line.is_empty() => continue,
            SplitLine::Whole(line) => escape_bytes(&line),
            SplitLine::TooLong => format!("(omitted: a line of more than {LONGEST_LINE} bytes)"),
        };
        complain(&format!("rdzv: {}: {text}", hook.flag));
    }
}

/// Sink that runs a command at each restart, on a separate thread.
pub(super) struct OnRestart {
    pub(super) hook: Hook,
    pub(super) title: String,
    pub(super) report: Arc<Mutex<NodeReport>>,
    pub(super) running: Vec<JoinHandle<()>>,
    /// `true` if a signal or a preemption ends the run without a wait for commands.
    pub(super) is_stopped: bool,
}

impl EventSink for OnRestart {
    fn record(&mut self, event: &AgentEvent) {
        let report = || self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let document = match event {
            AgentEvent::SignalReceived { .. } | AgentEvent::Preempted { .. } => {
                self.is_stopped = true;
                return;
            }
            AgentEvent::Restarting {
                failure,
                remaining,
                most,
                ..
            } => {
                let (report, failure) = (report(), failure.as_deref());
                Document::of_restart(&report, &self.title, most - remaining, failure, None)
            }
            AgentEvent::Regrouping { reason, .. } => {
                let (report, reason) = (report(), Some(reason.as_str()));
                let count = report.restart_count;
                Document::of_restart(&report, &self.title, count, None, reason)
            }
            _ => return,
        };
        let hook = self.hook.clone();
        let thread = thread::Builder::new().name("hook".to_owned());
        match thread.spawn(move || run(&hook, &document)) {
            Ok(thread) => self.running.push(thread),
            Err(error) => complain(&format!("rdzv: {}: {error}", self.hook.flag)),
        }
        self.running.retain(|thread| !thread.is_finished());
    }

    fn finish(&mut self) {
        for thread in self.running.drain(..) {
            if !self.is_stopped {
                let _ = thread.join();
            }
        }
    }
}
