//! Determines the cause of a worker's failure from the evidence it left.
//!
//! The first source that applies decides:
//!
//! ```text
//!   killed by the agent ───── the fault that it was killed for
//!   stopped by the agent ──── stopped, unless it had recorded its own error
//!   error file ────────────── class and text of the exception
//!   memory counters ───────── out of memory, if SIGKILL killed the worker
//!   end of its stderr ─────── exception, panic, abort message, missing script, full disk
//!   exit ──────────────────── signal, or code
//! ```

mod stderr;

use super::cause::{Cause, one_line};
use super::evidence::{ErrorFile, Evidence};
use super::exit::Exit;

/// SIGABRT.
const ABORT: i32 = 6;

/// Returns the cause of a worker's failure.
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
    // A program that reports its failure on stderr exits with a code, or aborts. Any other signal
    // leaves no time for a report. Then the last lines concern something else, such as a handled
    // error.
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

/// Returns the exception of a worker that failed before it was stopped.
/// The exception is that of a traceback among the last lines of the worker's stderr. Exceptions
/// that only report the stop, such as `KeyboardInterrupt`, do not count.
pub fn own_exception(stderr_tail: &[String]) -> Option<Cause> {
    let (_, last) = stderr::traceback(stderr_tail)?;
    let recent = stderr_tail.len() - last <= RECENT_LINES;
    let cause = stderr::last_words(stderr_tail, Exit::Code(1)).filter(|_| recent)?;
    let text = cause.to_string();
    let interrupted = ["KeyboardInterrupt", "SystemExit", "SignalException"];
    (!interrupted.iter().any(|class| text.starts_with(class))).then_some(cause)
}

/// `true` if a cause is a symptom of another worker's loss.
/// The cause reports a broken connection to that worker. Such a failure is hardly ever the first
/// one, even if its process exited first.
pub fn is_loss_of_a_peer(cause: &Cause) -> bool {
    matches!(cause, Cause::Exception { text } if ABOUT_A_PEER.iter().any(|words| text.contains(words)))
}

/// Number of last stderr lines in which a stopped worker's traceback counts.
/// An earlier traceback may concern an error that the worker handled.
const RECENT_LINES: usize = 8;

/// Texts of Python, the system, gloo and NCCL about a lost peer.
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
/// A full disk and exhausted memory have causes more precise than "exception".
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
