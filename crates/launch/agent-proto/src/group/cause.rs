//! The cause of a failure: one line of the failure report.

use std::fmt;
use std::time::Duration;

use rdzv_core::escape::escape;
use rdzv_core::signal;

/// Longest text of a cause, in characters; an ellipsis marks a cut.
const LONGEST: usize = 500;

/// The cause of the failure of a worker, or of a whole node.
///
/// [`Cause::kind`] is stable, for programs. The text ([`fmt::Display`]) is one line for users and
/// may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The program exited with an error that it reported itself.
    /// Examples: an exception, a panic, an assertion, a message of a library that aborted it.
    Exception {
        /// Class and text as the program wrote them, such as `ValueError: boom`.
        text: String,
    },
    /// The program exited with a code and without a recognised message.
    ExitCode {
        /// Exit code, 1 to 255.
        code: i32,
        /// Last stderr line with a letter or a digit, if the agent has one.
        /// The line may be unrelated to the failure. For shells, and for `sys.exit` with a text,
        /// the line states the reason.
        last_line: Option<String>,
    },
    /// A signal killed the program, but not one that the agent sent to stop it.
    Signal {
        /// Number of the signal.
        signal: i32,
    },
    /// The program ran out of memory: the kernel killed it, or it failed itself.
    OutOfMemory {
        /// The evidence, such as a control group's counter.
        evidence: String,
    },
    /// A file system was full.
    DiskFull {
        /// The program's message.
        text: String,
    },
    /// The program never ran.
    /// It is missing or not executable, or its interpreter, script or module is missing.
    NotStarted {
        /// The error.
        reason: String,
    },
    /// A timer that the worker had set itself expired.
    Watchdog {
        /// Name of the timed section, given by the worker.
        scope: String,
        /// Time between the deadline and its detection.
        late: Duration,
    },
    /// The worker sent no heartbeat within the limit of its phase.
    Heartbeat {
        /// Phase that the worker was in, and the note of its last heartbeat, if any.
        phase: String,
        /// Time without a heartbeat.
        silent: Duration,
        /// The limit of that phase.
        limit: Duration,
    },
    /// The worker made no progress, as seen from outside, within the limit.
    Hang {
        /// Time without progress.
        silent: Duration,
        /// The limit.
        limit: Duration,
        /// Location of the worker: its innermost calls, or its system call.
        location: String,
    },
    /// The kernel held the worker in an uninterruptible wait (state D).
    Uninterruptible {
        /// Duration of the wait.
        held: Duration,
        /// Kernel function in which the process waited, if it is known.
        wait_channel: Option<String>,
    },
    /// A node was lost or has left, or the rendezvous host was lost.
    NodeLost {
        /// Text that names the node and the observation.
        node: String,
    },
    /// The agent stopped the worker after another failure.
    StoppedByAgent {
        /// The worker's exit code, or minus the signal that killed the worker.
        number: i32,
    },
    /// The agent itself failed and could not continue.
    Agent {
        /// Class and text of the error.
        text: String,
    },
    /// A cause other than an exception, reported by another node.
    /// Only kind and text are sent.
    Reported {
        /// [`Cause::kind`] at that node.
        kind: String,
        /// Text of the cause, one line.
        text: String,
    },
}

impl Cause {
    /// Returns the cause for an error message of the program.
    /// Keeps only the first non-empty line of the text.
    pub fn exception(text: &str) -> Self {
        Self::Exception {
            text: one_line(text),
        }
    }

    /// Returns the cause from the kind and text that another node reported.
    pub fn reported(kind: String, text: &str) -> Self {
        let text = one_line(text);
        match kind.as_str() {
            "exception" => Self::Exception { text },
            _ => Self::Reported { kind, text },
        }
    }

    /// Returns the stable name of this kind of cause.
    pub fn kind(&self) -> &str {
        match self {
            Self::Exception { .. } => "exception",
            Self::ExitCode { .. } => "exit_code",
            Self::Signal { .. } => "signal",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::DiskFull { .. } => "disk_full",
            Self::NotStarted { .. } => "not_started",
            Self::Watchdog { .. } => "watchdog",
            Self::Heartbeat { .. } => "heartbeat",
            Self::Hang { .. } => "hang",
            Self::Uninterruptible { .. } => "uninterruptible",
            Self::NodeLost { .. } => "node_lost",
            Self::StoppedByAgent { .. } => "stopped_by_agent",
            Self::Agent { .. } => "agent_error",
            Self::Reported { kind, .. } => kind,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Exception { text } | Self::Agent { text } | Self::Reported { text, .. } => {
                text.clone()
            }
            Self::ExitCode { code, last_line } => match last_line {
                Some(line) => format!("exited with code {code}; its last line: {line}"),
                None => format!("exited with code {code}"),
            },
            Self::Signal { signal: 9 } => {
                "killed by SIGKILL, which the agent did not send".to_owned()
            }
            Self::Signal { signal } => format!("killed by {}", signal::in_words(*signal)),
            Self::OutOfMemory { evidence } => format!("out of memory: {evidence}"),
            Self::DiskFull { text } => format!("no space left on a file system: {text}"),
            Self::NotStarted { reason } => format!("could not be started: {reason}"),
            Self::Watchdog { scope, late } => format!(
                "its timer '{scope}' expired {} before the agent noticed it",
                seconds(*late)
            ),
            Self::Heartbeat {
                phase,
                silent,
                limit,
            } => format!(
                "no heartbeat for {} in phase '{phase}' (limit {})",
                seconds(*silent),
                seconds(*limit)
            ),
            Self::Hang {
                silent,
                limit,
                location,
            } => format!(
                "no progress for {} (limit {}); it was in {location}",
                seconds(*silent),
                seconds(*limit)
            ),
            Self::Uninterruptible { held, wait_channel } => {
                let held = seconds(*held);
                match wait_channel {
                    Some(channel) => {
                        format!("blocked in the kernel for {held} in {channel} (state D)")
                    }
                    None => format!("blocked in the kernel for {held} (state D)"),
                }
            }
            Self::NodeLost { node } => format!("node lost: {node}"),
            Self::StoppedByAgent { number } if *number < 0 => format!(
                "stopped by the agent with {} after another failure",
                signal::in_words(number.saturating_neg())
            ),
            Self::StoppedByAgent { number } => format!(
                "exited with code {number} while the agent was stopping it after another failure"
            ),
        };
        formatter.write_str(&one_line(&text))
    }
}

/// Returns the first line that is not empty, escaped.
/// An ellipsis replaces omitted text.
pub fn one_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let mut line: String = escape(first).chars().take(LONGEST).collect();
    if first.chars().count() > LONGEST || lines.next().is_some() {
        line.push('…');
    }
    line
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_kind_and_one_line() {
        let second = Duration::from_secs(1);
        let exit = |code, last_line: Option<&str>| Cause::ExitCode {
            code,
            last_line: last_line.map(str::to_owned),
        };
        let cases = [
            (
                Cause::exception("ValueError: a\nb"),
                "exception",
                "ValueError: a…",
            ),
            (exit(7, None), "exit_code", "exited with code 7"),
            (
                exit(1, Some("no dataset at /data")),
                "exit_code",
                "exited with code 1; its last line: no dataset at /data",
            ),
            (
                Cause::Signal { signal: 9 },
                "signal",
                "killed by SIGKILL, which the agent did not send",
            ),
            (Cause::Signal { signal: 11 }, "signal", "killed by SIGSEGV"),
            (
                Cause::Signal { signal: 40 },
                "signal",
                "killed by signal 40",
            ),
            (
                Cause::Heartbeat {
                    phase: "step".to_owned(),
                    silent: second * 3,
                    limit: second * 2,
                },
                "heartbeat",
                "no heartbeat for 3.0 s in phase 'step' (limit 2.0 s)",
            ),
            (
                Cause::Uninterruptible {
                    held: second,
                    wait_channel: None,
                },
                "uninterruptible",
                "blocked in the kernel for 1.0 s (state D)",
            ),
            (
                Cause::StoppedByAgent { number: -15 },
                "stopped_by_agent",
                "stopped by the agent with SIGTERM after another failure",
            ),
        ];
        for (cause, kind, text) in cases {
            assert_eq!((cause.kind(), cause.to_string().as_str()), (kind, text));
        }
    }

    #[test]
    fn a_line_is_short_and_harmless() {
        assert_eq!(one_line("\n  \n a\u{1b}[31mb\tc\n\n"), "a\\u{1b}[31mb c");
        let long = one_line(&"x".repeat(10_000));
        assert_eq!(long.chars().count(), LONGEST + 1);
        assert!(long.ends_with('…'));
    }
}
