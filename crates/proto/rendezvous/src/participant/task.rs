//! What an agent has been asked to do.

use std::time::Duration;

use crate::NodeDesc;
use crate::decide::Patience;
use rdzv_core::time::Mono;

/// How long a join whose time is over is taken back.
const ROLL_BACK: Duration = Duration::from_secs(5);

/// The request under way.
#[derive(Debug)]
pub(super) enum Task {
    Idle,
    Join {
        since: Mono,
        until: Mono,
        /// The first round that may be joined; those before have to be left. Unknown before the
        /// state was seen.
        first_round: Option<u64>,
        /// Who had come when the time was over.
        joined: Option<Vec<NodeDesc>>,
    },
    Leave {
        since: Mono,
        until: Mono,
    },
    Close {
        since: Mono,
        until: Mono,
    },
}

impl Task {
    pub(super) fn patience(&self, now: Mono) -> Patience {
        match *self {
            Self::Idle => Patience::InTime,
            Self::Join { until, .. } if now < until => Patience::InTime,
            Self::Join { until, .. } if now < until + ROLL_BACK => Patience::RollBack,
            Self::Leave { until, .. } | Self::Close { until, .. } if now < until => {
                Patience::InTime
            }
            _ => Patience::Over,
        }
    }

    /// When the patience changes next.
    pub(super) fn next_patience(&self, now: Mono) -> Option<Mono> {
        match *self {
            Self::Idle => None,
            Self::Join { until, .. } => [until, until + ROLL_BACK].into_iter().find(|at| *at > now),
            Self::Leave { until, .. } | Self::Close { until, .. } => {
                Some(until).filter(|at| *at > now)
            }
        }
    }
}
