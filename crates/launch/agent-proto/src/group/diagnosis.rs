//! Finds the cause of a worker's failure in what the worker left behind.
//!
//! The first source that applies decides:
//!
//! ```text
//!   killed by the agent ───── the fault that it was killed for
//!   stopped by the agent ──── that, unless it had recorded its own error before
//!   error file ────────────── class and text of the exception
//!   memory counters ───────── out of memory, for a worker that SIGKILL ended
//!   end of its stderr ─────── exception, panic, abort message, missing script, full disk
//!   exit ──────────────────── signal, or code
//! ```

mod stderr;

use super::cause::{Cause, one_line};
use super::evidence::{ErrorFile, Evidence};
use super::exit::Exit;

/// SIGABRT.
const ABORT: i32 = 6;

/// Returns the cause of the failure of a worker with this exit.
pub fn diagnose(exit: Exit, evidence: &Evidence) -> Cause {
    if let Some(cause) = &evidence.kill_cause {
        return cause.clone();
    }
    let recorded = evidence.error_file.as_ref().and_then(ErrorFile::message);
    if let Some(text) = recorded.map(str::trim).filter(|text| !text.is_empty()) {
        return exception(text);
    }
    if evidence.stopped_by_agent {
        return Cause::StoppedByAgent {
            number: exit.as_number(),
        };
    }
    if let (Exit::Signal(9), Some(shown)) = (exit, &evidence.out_of_memory) {
        return Cause::OutOfMemory {
            evidence: shown.clone(),
        };
    }
    // A program that reports its end in words exits with a code, or aborts. Any other signal leaves
    // no chance to report. Then the last lines are about something else: an error that was handled.
    if matches!(exit, Exit::Code(_) | Exit::Signal(ABORT))
        && let Some(cause) = stderr::last_words(&evidence.stderr_tail, exit)
    {
        return cause;
    }
    match exit {
        Exit::Signal(signal) => Cause::Signal { signal },
        Exit::Code(code) => Cause::ExitCode {
            code,
            last_line: stderr::last_line(&evidence.stderr_tail),
        },
    }
}

/// Returns the last Python traceback of these lines, with the exception's line.
pub fn traceback(lines: &[String]) -> Option<String> {
    let (head, last) = stderr::traceback(lines)?;
    Some(lines[head..=last].join("\n"))
}

/// Returns the exception with which a stopped worker had failed before.
/// The agent stopped the worker; the exception is that of a traceback among the last lines of its
/// stderr.
pub fn own_exception(stderr_tail: &[String]) -> Option<Cause> {
    let (_, last) = stderr::traceback(stderr_tail)?;
    let recent = stderr_tail.len() - last <= RECENT_LINES;
    let cause = stderr::last_words(stderr_tail, Exit::Code(1)).filter(|_| recent)?;
    let text = cause.to_string();
    let interrupted = ["KeyboardInterrupt", "SystemExit", "SignalException"];
    (!interrupted.iter().any(|class| text.starts_with(class))).then_some(cause)
}

/// `true` if a cause is a symptom of the loss of another worker.
/// A connection to that worker has ended. Such a failure is hardly ever the first one, even if its
/// process was the first to end.
pub fn is_loss_of_a_peer(cause: &Cause) -> bool {
    matches!(cause, Cause::Exception { text } if ABOUT_A_PEER.iter().any(|words| text.contains(words)))
}

/// Number of lines at the end of stderr in which a traceback counts.
/// This applies to stopped workers. An earlier traceback may be about an error that was handled.
const RECENT_LINES: usize = 8;

/// Messages of Python, gloo, NCCL and our own collectives about a lost peer.
const ABOUT_A_PEER: &[&str] = &[
    "Connection closed by peer",
    "Connection reset by peer",
    "ConnectionResetError",
    "ConnectionAbortedError",
    "BrokenPipeError",
    "Broken pipe",
    "failed to recv, got 0 bytes",
    "remote process exited",
    "ncclRemoteError",
];

/// Returns the cause for the text of an exception.
/// Some texts have a more precise cause than "exception".
fn exception(text: &str) -> Cause {
    let class = text.split([':', ' ', '(']).next().unwrap_or_default();
    let class = class.rsplit('.').next().unwrap_or_default();
    let full = |line: &str| line.contains("No space left on device") || line.contains("ENOSPC");
    let line = one_line(text);
    if full(&line) {
        return Cause::DiskFull { text: line };
    }
    if class == "MemoryError" || class == "OutOfMemoryError" {
        return Cause::OutOfMemory { evidence: line };
    }
    Cause::Exception { text: line }
}

#[cfg(test)]
mod tests;
