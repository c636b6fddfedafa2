//! The published exit codes, and the errors that refuse a launch.
//!
//! | code | when |
//! |---|---|
//! | 0 | success: all workers exited with 0, a spare was not needed, a signal ended the server, help was shown |
//! | 1 | workers failed, a handled signal ended the run, the run could not be set up, or an error ended it |
//! | 2 | the command line is wrong: a flag, or the value of one |
//! | 75 | workers exited in order after a notice of preemption (`--preempt-exit-code`) |
//! | 77 | the check of this node (`--node-check`) failed, so it has left the job |
//! | by signal | a signal arrived before workers were started, or was unhandled |
//!
//! Codes 0, 1 and 2 are those of `torchrun`, so job scripts that check them keep working. In
//! torchrun's style, an impossible value ends the launch with 1. With `--exit-code worker`, a
//! launch whose flags could be parsed returns more codes:
//!
//! | code | when |
//! |---|---|
//! | 0 | as above |
//! | 1 to 255 | the exit code of the worker that failed first, on any node |
//! | 128 + n | signal n ended that worker; or the handled signal n ended the run |
//! | 69 | the rendezvous (coordinator or store) was unreachable, or the run was closed |
//! | 70 | the agent failed in another way |
//! | 71 | a system call that the agent needs failed |
//! | 73 | log files could not be created |
//! | 75 | the nodes did not find one another in time, or a node was lost: another try may help |
//! | 78 | a value in the plan is impossible |
//! | 126, 127 | the program could not be executed; it does not exist |
//! | 1, 2 | the launch was refused before it began, as above |
//!
//! The numbers of the agent's errors are those of `sysexits.h` and of shells. A worker can exit
//! with the same numbers; `--report` shows which of the two occurred.

use std::io;
use std::process::ExitCode;

use rdzv_agent::outcome::Verdict;
use rdzv_agent::{AgentError, Outcome};
use rdzv_rendezvous::RendezvousError;
use thiserror::Error;

use crate::explanation::{Given, Setting};
use crate::face::Face;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Success = 0,
    Failure = 1,
    Usage = 2,
}

impl Exit {
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Source of the launcher's exit code (`--exit-code`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitCodes {
    /// The codes of `torchrun`, 0 or 1, and 75, 77 and those of signals.
    Launcher,
    /// The code of the first failure, of the agent's error, or of a signal.
    Worker,
}

pub(crate) fn of_launch(codes: ExitCodes, outcome: &Outcome, verdict: &Verdict) -> u8 {
    match (codes, outcome) {
        (_, Outcome::Succeeded) => Exit::Success.code(),
        (_, Outcome::Error(AgentError::NodeCheck { .. })) => NODE_UNFIT,
        // Before the workers start, the signal itself ends the launcher; a shell shows this code.
        (
            ExitCodes::Worker,
            Outcome::Signalled { signal, .. } | Outcome::Preempted { signal, .. },
        )
        | (
            ExitCodes::Launcher,
            Outcome::Signalled {
                signal,
                workers_started: false,
            },
        ) => by_number(-signal),
        (ExitCodes::Launcher, _) => Exit::Failure.code(),
        (ExitCodes::Worker, Outcome::Failed { .. }) => first_failure(verdict),
        (ExitCodes::Worker, Outcome::Error(AgentError::PeerFailed { .. })) => {
            first_failure(verdict)
        }
        (ExitCodes::Worker, Outcome::Error(error)) => of_error(error, verdict),
    }
}

/// Exit code of a node whose check failed: `EX_NOPERM` of `sysexits.h`.
const NODE_UNFIT: u8 = 77;

fn first_failure(verdict: &Verdict) -> u8 {
    let exit = verdict.first().and_then(|first| first.evidence.exit);
    exit.map_or(Exit::Failure.code(), |exit| by_number(exit.as_number()))
}

/// Converts an exit number to an exit code, which is never 0.
///
/// A negative number is a signal: it becomes 128 plus the signal, as in shells.
fn by_number(number: i32) -> u8 {
    let code = if number < 0 { 128 - number } else { number };
    match u8::try_from(code) {
        Ok(0) | Err(_) => Exit::Failure.code(),
        Ok(code) => code,
    }
}

fn of_error(error: &AgentError, verdict: &Verdict) -> u8 {
    const UNAVAILABLE: u8 = 69;
    const SOFTWARE: u8 = 70;
    const SYSTEM: u8 = 71;
    const CANNOT_CREATE: u8 = 73;
    const TRY_AGAIN: u8 = 75;
    const CONFIGURATION: u8 = 78;
    const NOT_EXECUTABLE: u8 = 126;
    const NOT_FOUND: u8 = 127;
    let first = verdict.first();
    if first.is_some_and(|first| first.cause.kind() == "node_lost") {
        return TRY_AGAIN;
    }
    match error {
        AgentError::ProgramNotFound { .. } => NOT_FOUND,
        AgentError::Spawn { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => NOT_FOUND,
            io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => NOT_EXECUTABLE,
            // ENOEXEC has no `ErrorKind`.
            _ if source.raw_os_error() == Some(8) => NOT_EXECUTABLE,
            _ => SYSTEM,
        },
        AgentError::Logs { .. } => CANNOT_CREATE,
        AgentError::System { .. } => SYSTEM,
        AgentError::Plan(_) => CONFIGURATION,
        AgentError::Rendezvous(error) => match error {
            RendezvousError::JoinTimeout { .. }
            | RendezvousError::NodesMissing { .. }
            | RendezvousError::NoNodeZero { .. }
            | RendezvousError::SilentLeader { .. } => TRY_AGAIN,
            RendezvousError::Argument(_) => CONFIGURATION,
            _ => UNAVAILABLE,
        },
        AgentError::Store(_) | AgentError::RunClosed { .. } => UNAVAILABLE,
        _ => SOFTWARE,
    }
}

/// Error about an impossible value: the exception of `torchrun` and its text.
///
/// In torchrun's style, it ends the launch with exit code 1. The last line on stderr is
/// `class: text`, for which job scripts search. In rdzv's style, it ends the launch with a plain
/// sentence and exit code 2, or 1 if the cause is not the command line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{class}: {text}")]
pub(crate) struct Raised {
    /// Class of the exception in `torchrun`.
    pub(crate) class: &'static str,
    /// Text of `torchrun`, or rdzv's own if `torchrun` has none.
    pub(crate) text: String,
    /// Sentence of rdzv: the flag, its value, and the allowed values.
    ///
    /// `None` if the cause is not the command line.
    plain: Option<String>,
}

impl Raised {
    /// Creates an error of the class for bad values, `ValueError`.
    pub(crate) fn value_error(text: impl Into<String>) -> Self {
        Self::new("ValueError", text)
    }

    /// Creates an error of any class.
    pub(crate) fn new(class: &'static str, text: impl Into<String>) -> Self {
        Self {
            class,
            text: text.into(),
            plain: None,
        }
    }

    /// Adds a plain sentence, for an error in the command line.
    pub(crate) fn plainly(mut self, sentence: impl Into<String>) -> Self {
        self.plain = Some(sentence.into());
        self
    }

    /// Adds a plain sentence: the name of the flag or variable, then the text.
    pub(crate) fn about(self, flag: &str) -> Self {
        let sentence = format!("{flag}: {}", self.text);
        self.plainly(sentence)
    }
}

/// Reason why a launch is refused before it begins.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    /// A value is impossible.
    #[error(transparent)]
    Raised(#[from] Raised),
    /// The command line is wrong (exit code 2).
    ///
    /// In torchrun's style, the usage line comes before the text.
    #[error("{0}")]
    Usage(String),
    /// The command line is wrong; the two styles have different texts.
    #[error("{torchrun}")]
    Parser {
        /// Text of torchrun's parser.
        torchrun: String,
        /// Sentence of rdzv.
        plain: String,
    },
}

impl Refusal {
    /// Creates the error for a wrong value of a flag.
    pub(crate) fn argument(flag: &str, problem: &str) -> Self {
        Self::parser(flag, problem, &format!(": {problem}"))
    }

    /// Creates the error for a wrong value of a flag, with a text for each style.
    ///
    /// `flag` has all spellings of the flag, separated by slashes. `problem` is the text of
    /// torchrun's parser. rdzv's sentence is the long name of the flag, followed by `plain`.
    pub(crate) fn parser(flag: &str, problem: &str, plain: &str) -> Self {
        let mut names = flag.split('/');
        let name = names.find(|name| name.starts_with("--")).unwrap_or(flag);
        Self::Parser {
            torchrun: format!("argument {flag}: {problem}"),
            plain: format!("{name}{plain}"),
        }
    }

    /// Returns the refusal in one sentence, without the class of an exception.
    pub(crate) fn plain(&self) -> &str {
        match self {
            Self::Raised(raised) => raised.plain.as_ref().unwrap_or(&raised.text),
            Self::Usage(text) => text,
            Self::Parser { plain, .. } => plain,
        }
    }

    /// Adds the name of the variable that set the wrong value, if one did.
    pub(crate) fn with_origin(mut self, settings: &[Setting]) -> Self {
        let variable = |setting: &Setting| match &setting.given {
            Given::ByVariable(name) if self.plain().starts_with(&format!("{} ", setting.flag)) => {
                Some(name.clone())
            }
            _ => None,
        };
        if let Some(name) = settings.iter().find_map(variable)
            && let Self::Raised(Raised {
                plain: Some(plain), ..
            }) = &mut self
        {
            plain.push_str(&format!(" (the value comes from the variable {name})"));
        }
        self
    }

    /// Returns the exit code of a launch that this error refuses.
    pub(crate) fn exit(&self, face: Face) -> Exit {
        match (self, face) {
            (Self::Raised(_), Face::Torchrun) => Exit::Failure,
            (Self::Raised(raised), Face::Rdzv) if raised.plain.is_none() => Exit::Failure,
            _ => Exit::Usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use rdzv_agent::outcome::{Cause, Evidence, Failure, Finality};

    use super::*;

    fn verdict(exit_code: Option<i32>) -> Verdict {
        Verdict {
            failures: vec![Failure {
                cause: Cause::reported(String::new(), ""),
                evidence: Evidence {
                    exit: exit_code.map(rdzv_agent::outcome::Exit::from_number),
                    ..Evidence::default()
                },
            }],
            ..Verdict::default()
        }
    }

    fn failed() -> Outcome {
        Outcome::Failed {
            failures: Vec::new(),
            root_cause: 0,
            finality: Finality::BudgetUsed { max_restarts: 0 },
        }
    }

    #[test]
    fn the_launchers_codes_are_those_of_torchrun() {
        let code = |outcome| of_launch(ExitCodes::Launcher, &outcome, &verdict(Some(7)));
        assert_eq!(code(Outcome::Succeeded), 0);
        assert_eq!(code(failed()), 1);
        let signalled = |workers_started| Outcome::Signalled {
            signal: 15,
            workers_started,
        };
        assert_eq!(code(signalled(true)), 1);
        assert_eq!(code(signalled(false)), 143);
        assert_eq!(code(Outcome::Error(AgentError::KeeperLost)), 1);
    }

    #[test]
    fn the_workers_code_is_that_of_the_first_failure() {
        for (exit_code, expected) in [
            (Some(7), 7),
            (Some(255), 255),
            (Some(-9), 137),
            (Some(-15), 143),
            (Some(0), 1),
            (None, 1),
        ] {
            let verdict = verdict(exit_code);
            assert_eq!(
                of_launch(ExitCodes::Worker, &failed(), &verdict),
                expected,
                "{exit_code:?}"
            );
            let peer_failed = Outcome::Error(AgentError::PeerFailed {
                node: "b".to_owned(),
                reason: String::new(),
            });
            assert_eq!(
                of_launch(ExitCodes::Worker, &peer_failed, &verdict),
                expected
            );
        }
    }

    #[test]
    fn errors_of_the_agent_have_codes_of_their_own() {
        let spawn = |code| AgentError::Spawn {
            program: "train.sh".to_owned(),
            local_rank: 0,
            source: io::Error::from_raw_os_error(code),
        };
        let missing = AgentError::ProgramNotFound {
            program: "x".to_owned(),
        };
        for (error, expected) in [
            (missing, 127),
            (spawn(13), 126),
            (spawn(8), 126),
            (spawn(11), 71),
            (AgentError::Plan(String::new()), 78),
            (AgentError::KeeperLost, 70),
        ] {
            let outcome = Outcome::Error(error);
            let code = of_launch(ExitCodes::Worker, &outcome, &Verdict::default());
            assert_eq!(code, expected, "{outcome:?}");
        }
    }
}
