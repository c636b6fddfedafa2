//! Which of the groups that meet in one store, one after the other, a worker belongs to.
//!
//! The first worker opens round 1 and says what it is to be; a worker that finds a round that is
//! over, or in which it has been already, opens the next one. No process has to remember how many
//! groups it has seen, so one that was restarted meets the others just the same.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::member::{BadRecord, read, written};

/// What a group is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundKind {
    /// Everybody is there from the beginning.
    Static {
        /// How many.
        world_size: u32,
    },
    /// Members come and go.
    Dynamic,
}

/// One group of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Its number: 1, 2, …
    pub epoch: u64,
    /// What it is.
    pub kind: RoundKind,
    /// `true` if it has ended.
    #[serde(default)]
    pub over: bool,
}

/// Why a worker has no place in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The group is of the other kind. The first sentence is PyTorch's.
    #[error(
        "RPC group mixes statically and dynamically initialized members which is not supported. \
         The group in this store is {theirs}, this worker is {mine}: give all of them a world size, \
         or none"
    )]
    Kind {
        /// What the others are.
        theirs: &'static str,
        /// What this one would be.
        mine: &'static str,
    },
    /// The group is of another size.
    #[error(
        "workers disagree on the world size: this worker was given {mine}, the group in this store \
         has {theirs}; give all of them the same"
    )]
    WorldSize {
        /// What this worker was given.
        mine: u32,
        /// What the others were given.
        theirs: u32,
    },
}

/// What a worker does about the round that it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundDecision {
    /// Take part.
    Enter,
    /// Open this one instead.
    Open(Round),
    /// Neither.
    Refuse(Mismatch),
}

impl Round {
    /// The first round of a store.
    pub fn first(kind: RoundKind) -> Self {
        Self {
            epoch: 1,
            kind,
            over: false,
        }
    }

    /// The one after this.
    #[must_use]
    pub fn next(&self, kind: RoundKind) -> Self {
        Self {
            epoch: self.epoch + 1,
            kind,
            over: false,
        }
    }

    /// This one, ended.
    #[must_use]
    pub fn ended(self) -> Self {
        Self { over: true, ..self }
    }

    /// What a worker that wants a group of a kind does about this round.
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

    /// As it is kept in a store.
    pub fn encode(&self) -> Vec<u8> {
        written(self)
    }

    /// Out of a store.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if it is something else.
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
        let round = Round::first(PAIR);
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
        let text = |round: RoundKind, mine| match Round::first(round).decide(mine) {
            RoundDecision::Refuse(mismatch) => mismatch.to_string(),
            other => panic!("{other:?}"),
        };
        let sizes = text(PAIR, THREE);
        assert!(
            sizes.contains("was given 3") && sizes.contains("has 2"),
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
        for round in [Round::first(PAIR), Round::first(RoundKind::Dynamic).ended()] {
            assert_eq!(Round::decode(&round.encode()).unwrap(), round);
        }
        assert!(Round::decode(b"true").is_err());
    }
}
