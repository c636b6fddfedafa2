//! Names and ids of workers.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Exclusive upper limit on the length of a name, in ASCII characters.
pub const NAME_LIMIT: usize = 128;

/// Id of a worker: its rank in the group.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct WorkerId(pub u32);

impl fmt::Display for WorkerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Error for an invalid worker name, with PyTorch's text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, but got {0}"
)]
pub struct BadName(pub String);

/// Name of a worker: 1 to 127 letters, digits, `-`, `_` and `:`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerName(String);

impl WorkerName {
    /// Creates a name from a text, and checks it.
    ///
    /// # Errors
    ///
    /// [`BadName`] if the name is empty or too long, or contains a character that is not allowed.
    pub fn new(name: impl Into<String>) -> Result<Self, BadName> {
        let name = name.into();
        let legal = |letter: u8| letter.is_ascii_alphanumeric() || b"-_:".contains(&letter);
        if name.is_empty() || name.len() >= NAME_LIMIT || !name.bytes().all(legal) {
            return Err(BadName(name));
        }
        Ok(Self(name))
    }

    /// Returns the name as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for WorkerName {
    type Error = BadName;

    fn try_from(name: String) -> Result<Self, BadName> {
        Self::new(name)
    }
}

impl From<WorkerName> for String {
    fn from(name: WorkerName) -> Self {
        name.0
    }
}

impl fmt::Display for WorkerName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Name and id of a worker, displayed in PyTorch's format.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Id of the worker, which is its rank in the group.
    pub id: WorkerId,
    /// Name of the worker, unique in the group.
    pub name: WorkerName,
}

impl fmt::Display for WorkerInfo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "WorkerInfo(id={}, name={})", self.id, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_127_legal_characters() {
        assert!(WorkerName::new("a-Z_9:").is_ok());
        assert!(WorkerName::new("x".repeat(127)).is_ok());
        for bad in ["", "a b", "a.b", "a/b", "é", "a\n", &"x".repeat(128)] {
            let error = WorkerName::new(bad).unwrap_err();
            assert!(
                error
                    .to_string()
                    .ends_with(&format!("128 chars, but got {bad}"))
            );
        }
    }

    #[test]
    fn a_worker_prints_like_the_references() {
        let worker = WorkerInfo {
            id: WorkerId(3),
            name: WorkerName::new("w3").unwrap(),
        };
        assert_eq!(worker.to_string(), "WorkerInfo(id=3, name=w3)");
    }
}
