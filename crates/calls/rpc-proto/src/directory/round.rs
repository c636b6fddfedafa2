//! Rounds: successive groups in one store.
//!
//! The first worker opens round 1 and specifies its kind. A worker opens the next round if the
//! current one has ended, or is a static round in which the worker's rank is already taken. A
//! dynamic group also follows a static group that failed to form. A static group also follows a
//! dynamic group without members. No process has to remember the number of earlier groups, so a
//! restarted process still finds the other workers.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::member::{BadRecord, read, written};

/// Kind of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundKind {
    /// All members join at the beginning.
    Static {
        /// Number of members.
        world_size: u32,
    },
    /// Members join and leave.
    Dynamic,
}

/// One group in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryRound {
    /// Number of the round: 1, 2 and so on.
    pub epoch: u64,
    /// Kind of the group.
    pub kind: RoundKind,
    /// `true` if the round has ended.
    #[serde(default)]
    pub over: bool,
}

/// Reason why a worker cannot join a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The group is of the other kind. The first sentence is PyTorch's.
    #[error(
        "RPC group mixes statically and dynamically initialized members which is not supported. \
         The group in this store is {theirs}, but this worker is {mine}; give all workers a world size, \
         or none"
    )]
    Kind {
        /// Kind of the group.
        theirs: &'static str,
        /// Kind that this worker was given.
        mine: &'static str,
    },
    /// The group is of another size.
    #[error(
        "workers disagree on the world size: this worker specifies {mine}, but the group in this \
         store has {theirs}; give all workers the same world size"
    )]
    WorldSize {
        /// Size that this worker was given.
        mine: u32,
        /// Size of the group.
        theirs: u32,
    },
}

/// Decision of a worker about the round that it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundDecision {
    /// Join this round.
    Enter,
    /// Open this new round instead.
    Open(DirectoryRound),
    /// Fail with this error.
    Refuse(Mismatch),
}

impl DirectoryRound {
    /// Creates the first round of a store.
    pub fn first(kind: RoundKind) -> Self {
        Self {
            epoch: 1,
            kind,
            over: false,
        }
    }

    /// Returns the next round, of this kind.
    #[must_use]
    pub fn next(&self, kind: RoundKind) -> Self {
        Self {
            epoch: self.epoch + 1,
            kind,
            over: false,
        }
    }

    /// Returns this round as ended.
    #[must_use]
    pub fn ended(self) -> Self {
        Self { over: true, ..self }
    }

    /// Returns the decision of a worker that wants a group of this kind.
    pub fn decide(&self, mine: RoundKind) -> RoundDecision {
        use RoundKind::{Dynamic, Static};
        if self.over {
            return RoundDecision::Open(self.next(mine));
        }
        match (self.kind, mine) {
            (Static { world_size: theirs }, Static { world_size: mine }) if theirs != mine => {
                RoundDecision::Refuse(Mismatch::WorldSize { mine, theirs })
            }
            (Static { .. }, Dynamic) | (Dynamic, Static { .. }) => {
                RoundDecision::Refuse(Mismatch::Kind {
                    theirs: self.kind.word(),
                    mine: mine.word(),
                })
            }
            _ => RoundDecision::Enter,
        }
    }

    /// Returns the stored form of the round.
    pub fn encode(&self) -> Vec<u8> {
        written(self)
    }

    /// Reads a round from its stored form.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if the bytes are not a round.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadRecord> {
        read("the round of an RPC group", bytes)
    }
}

impl RoundKind {
    fn word(self) -> &'static str {
        match self {
            Self::Static { .. } => "static",
            Self::Dynamic => "dynamic",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: RoundKind = RoundKind::Static { world_size: 2 };
    const THREE: RoundKind = RoundKind::Static { world_size: 3 };

    #[test]
    fn a_round_that_fits_is_entered_and_one_that_is_over_is_followed() {
        let round = DirectoryRound::first(PAIR);
        assert_eq!(round.decide(PAIR), RoundDecision::Enter);
        for kind in [PAIR, THREE, RoundKind::Dynamic] {
            let RoundDecision::Open(next) = round.ended().decide(kind) else {
                panic!("a round that is over cannot be entered");
            };
            assert_eq!((next.epoch, next.kind, next.over), (2, kind, false));
        }
    }

    #[test]
    fn disagreement_names_both_sides() {
        let text = |round: RoundKind, mine| match DirectoryRound::first(round).decide(mine) {
            RoundDecision::Refuse(mismatch) => mismatch.to_string(),
            other => panic!("{other:?}"),
        };
        let sizes = text(PAIR, THREE);
        assert!(
            sizes.contains("specifies 3") && sizes.contains("has 2"),
            "{sizes}"
        );
        for (round, mine) in [(PAIR, RoundKind::Dynamic), (RoundKind::Dynamic, PAIR)] {
            assert!(text(round, mine).starts_with(
                "RPC group mixes statically and dynamically initialized members which is not \
                 supported. "
            ));
        }
    }

    #[test]
    fn a_round_survives_its_written_form() {
        for round in [
            DirectoryRound::first(PAIR),
            DirectoryRound::first(RoundKind::Dynamic).ended(),
        ] {
            assert_eq!(DirectoryRound::decode(&round.encode()).unwrap(), round);
        }
        assert!(DirectoryRound::decode(b"true").is_err());
    }
}
