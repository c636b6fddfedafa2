//! The two output styles of a launcher: torchrun's and rdzv's.

/// Style of all messages that a launcher prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    /// Plain sentences; the end of the run and its cause come last.
    Rdzv,
    /// Texts, log lines and report of `torchrun`, for programs that parse them.
    Torchrun,
}
