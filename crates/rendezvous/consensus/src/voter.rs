//! The names of members.

use std::fmt;

/// A member of a group: one process. Drawn at random when the process starts, and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoterId(u64);

impl VoterId {
    /// A member with this number, which is not 0.
    pub const fn new(number: u64) -> Option<Self> {
        match number {
            0 => None,
            _ => Some(Self(number)),
        }
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for VoterId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}
