//! How `rdzv` ends: the published exit codes, and the two ways to refuse a command line.
//!
//! | code | when |
//! |---|---|
//! | 0 | the work was done: all workers exited with 0, the server was told to end, help was shown |
//! | 1 | workers failed (whatever their codes were), a handled signal ended the run, a value is impossible, the run could not be set up |
//! | 2 | the command line itself is wrong, or asks for something that is not supported |
//! | by signal | a signal came before workers were started, or one that is not handled |
//!
//! Codes 0, 1 and 2 are those of `torchrun`, so job scripts that look at them keep working.

use std::process::ExitCode;

use thiserror::Error;

/// The published exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The work was done.
    Success,
    /// It was not.
    Failure,
    /// The command line is wrong.
    Usage,
}

impl Exit {
    /// The number that the caller of the program sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// A value that cannot be: the class of exception that the reference raises, and its text. Ends the
/// run with exit code 1 and `class: text` as the last line on stderr, where job scripts look for it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{class}: {text}")]
pub(crate) struct Raised {
    /// The reference's class.
    pub(crate) class: &'static str,
    /// The reference's text; ours where the reference has none.
    pub(crate) text: String,
}

impl Raised {
    /// The reference's general word for a bad value.
    pub(crate) fn value_error(text: impl Into<String>) -> Self {
        Self::new("ValueError", text)
    }

    /// Any class.
    pub(crate) fn new(class: &'static str, text: impl Into<String>) -> Self {
        Self {
            class,
            text: text.into(),
        }
    }
}

/// Why a launch is refused before it begins.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    /// A value cannot be (exit code 1).
    #[error(transparent)]
    Raised(#[from] Raised),
    /// The command line is wrong (exit code 2, with the usage line).
    #[error("{0}")]
    Usage(String),
    /// The command line is right, but asks for what this version does not do (exit code 2).
    #[error("{0}")]
    Unsupported(String),
}
