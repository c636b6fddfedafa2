//! Ids of members.

use std::fmt;

/// Id of a member of a group, which is one process.
///
/// The process draws the id at random when it starts, and another one when it leaves a group. An id
/// is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoterId(u64);

impl VoterId {
    /// Creates an id from a number; `None` if the number is 0.
    pub const fn new(number: u64) -> Option<Self> {
        match number {
            0 => None,
            _ => Some(Self(number)),
        }
    }

    /// Returns the number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for VoterId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}
