//! The two forms in which a launcher speaks: torchrun's, and our own.

/// The form of everything that a launcher says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    /// Plain sentences: events, refusals, and the end of the run with its cause last.
    Rdzv,
    /// The texts, log lines and failure report of `torchrun`, for programs that look for them.
    Torchrun,
}
