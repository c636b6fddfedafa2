//! Identifiers of runs and connections.

use std::fmt;

/// Name of a job's run, which all nodes of the job share (`--rdzv-id`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

impl RunId {
    /// Creates a run id from the user's text, unchanged.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the run id as the user specified it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Id of one connection to a server.
///
/// The driver assigns the ids. The driver does not reuse an id while the machine still has state
/// for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);
