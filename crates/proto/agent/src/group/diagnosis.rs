//! From what a worker left behind to the one line that says why it failed.
//!
//! ```text
//!   condemned by the agent ── its cause
//!   stopped by the agent ──── that, unless it had recorded an error of its own before
//!   error file ────────────── class and text of the exception
//!   memory counters ───────── out of memory, for a worker that died of SIGKILL
//!   end of its stderr ─────── exception, panic, abort message, missing script, full disk
//!   exit ──────────────────── signal, or code
//! ```

mod stderr;

use super::cause::{Cause, one_line};
use super::exit::Exit;

/// SIGABRT.
const ABORT: i32 = 6;

/// What is known of one failed worker.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// How it ended.
    pub exit: Exit,
    /// Whether the agent had signalled it while it was running.
    pub stopped_by_agent: bool,
    /// Why the agent had it killed, if that was for a fault of its own.
    pub condemned: Option<&'a Cause>,
    /// The message in its error file: class and text of an exception.
    pub recorded: Option<&'a str>,
    /// The last lines of its stderr, oldest first; empty if there are none in our hands.
    pub stderr_tail: &'a [String],
    /// What shows that the kernel killed for lack of memory while it ran.
    pub out_of_memory: Option<&'a str>,
}

/// Why the worker failed.
pub fn diagnose(evidence: &Evidence<'_>) -> Cause {
    if let Some(cause) = evidence.condemned {
        return cause.clone();
    }
    if let Some(text) = evidence.recorded.map(str::trim)
        && !text.is_empty()
    {
        return exception(text);
    }
    if evidence.stopped_by_agent {
        return Cause::StoppedByAgent {
            number: evidence.exit.as_number(),
        };
    }
    if let (Exit::Signal(9), Some(shown)) = (evidence.exit, evidence.out_of_memory) {
        return Cause::OutOfMemory {
            evidence: shown.to_owned(),
        };
    }
    // A program that puts its end into words exits with a code, or aborts. Before any other signal it
    // had no chance to, so that what stands there is about something else: an error that it handled.
    if matches!(evidence.exit, Exit::Code(_) | Exit::Signal(ABORT))
        && let Some(cause) = stderr::last_words(evidence.stderr_tail, evidence.exit)
    {
        return cause;
    }
    match evidence.exit {
        Exit::Signal(signal) => Cause::Signal { signal },
        Exit::Code(code) => Cause::ExitCode {
            code,
            last_line: stderr::last_line(evidence.stderr_tail),
        },
    }
}

/// The last Python traceback of these lines, with the line that names the exception.
pub fn traceback(lines: &[String]) -> Option<String> {
    let (head, last) = stderr::traceback(lines)?;
    Some(lines[head..=last].join("\n"))
}

/// What a worker that the agent stopped had to say of its own before: the exception of a traceback
/// among the last lines of its stderr.
pub fn own_words(stderr_tail: &[String]) -> Option<Cause> {
    let (_, last) = stderr::traceback(stderr_tail)?;
    let recent = stderr_tail.len() - last <= RECENT_LINES;
    let cause = stderr::last_words(stderr_tail, Exit::Code(1)).filter(|_| recent)?;
    let text = cause.to_string();
    let interrupted = ["KeyboardInterrupt", "SystemExit", "SignalException"];
    (!interrupted.iter().any(|class| text.starts_with(class))).then_some(cause)
}

/// Whether a cause is how the loss of another worker looks: a connection to it has ended. Such a
/// failure is hardly ever the first one, even if its process was the first to end.
pub fn is_about_a_peer(cause: &Cause) -> bool {
    matches!(cause, Cause::Exception { text } if tells_of_a_peer(text))
}

/// The same of the text of an exception.
pub fn tells_of_a_peer(text: &str) -> bool {
    ABOUT_A_PEER.iter().any(|words| text.contains(words))
}

/// Which of the failures came first, given the one whose process ended first and what each of them
/// says: if that one only tells of the loss of a peer, the first that says something else.
///
/// `failures` has for each whether the agent had stopped it, and its cause; one that was stopped
/// counts if its cause is one of its own.
pub fn first_with_a_cause_of_its_own(failures: &[(bool, &Cause)], first: usize) -> usize {
    let Some((_, cause)) = failures.get(first) else {
        return first;
    };
    if !is_about_a_peer(cause) {
        return first;
    }
    failures
        .iter()
        .position(|(stopped, cause)| {
            let says_something = !matches!(cause, Cause::StoppedByAgent { .. });
            let killed_for_it = !stopped || !matches!(cause, Cause::Signal { .. });
            says_something && killed_for_it && !is_about_a_peer(cause)
        })
        .unwrap_or(first)
}

/// How near to the end of its stderr the last traceback of a stopped worker has to be, in lines: it
/// may be about an error that was handled long ago.
const RECENT_LINES: usize = 8;

/// What Python, gloo, NCCL and our own collectives say of a peer that is gone.
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

/// An exception by its words; some say more than that there was one.
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
