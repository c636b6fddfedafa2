//! An agent's knowledge of its coordinator, and its words over a new connection.

use std::time::Duration;

use super::Joined;
use crate::coordinator::wire::{Authority, HeldRound, LastCoordinator};

/// Time between two messages that there is no coordinator.
const REMIND: Duration = Duration::from_secs(10);

/// Waits that are shorter are not spoken of. It may be over only when an attempt to connect is.
const FIRST: Duration = Duration::from_millis(1500);

/// An agent's knowledge of its coordinator, and its words to it.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    /// The highest authority that was accepted.
    pub(super) authority: Option<Authority>,
    /// The numeric address at which the coordinator is reached; empty if nobody has said it.
    pub(super) address: String,
    /// The last round that can be recovered, and the rank of the participant that hosts the coordinator.
    pub(super) recoverable: Option<(u64, Option<u32>)>,
    /// The last round that this agent was in, if that can be recovered.
    pub(super) last: Option<HeldRound>,
    /// The round whose workers' store this agent, with rank 0, has announced, and its host and port.
    pub(super) published: Option<(u64, String, u16)>,
    /// The round whose workers have succeeded here.
    pub(super) succeeded: Option<u64>,
    /// Why this agent has failed for good.
    pub(super) failed: Option<String>,
    /// Time without a coordinator when people were told of that last.
    pub(super) reminded_after: Option<Duration>,
}

impl Attachment {
    /// The time for which the next coordinator is waited for, if there will be one.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let timeout = self.authority?.timeout;
        (!timeout.is_zero()).then_some(timeout)
    }

    /// Whether a round holds on without a connection.
    pub(super) fn is_recoverable(&self, round: u64) -> bool {
        let announced = self.recoverable.map(|(round, _)| round);
        self.timeout().is_some() && announced == Some(round)
    }

    /// The coordinator that was obeyed last.
    pub(super) fn last_coordinator(&self) -> LastCoordinator {
        let authority = self.authority.unwrap_or_default();
        LastCoordinator {
            cluster: authority.cluster,
            epoch: authority.epoch,
            address: self.address.clone(),
        }
    }

    /// Why a coordinator cannot be obeyed.
    pub(super) fn fault(&self, authority: &Authority) -> Option<String> {
        let ours = self.authority?;
        (authority.cluster == ours.cluster && authority.epoch < ours.epoch).then(|| {
            format!(
                "it has epoch {}, and one with epoch {} has followed it",
                authority.epoch, ours.epoch
            )
        })
    }

    /// Whether people are to be told that there has been no coordinator for so long.
    pub(super) fn is_to_tell(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed >= self.reminded_after.map_or(FIRST, |after| after + REMIND);
        if is_due {
            self.reminded_after = Some(elapsed);
        }
        is_due
    }

    /// A round, as this agent knows it.
    pub(super) fn held(&self, joined: &Joined) -> HeldRound {
        let round = joined.round;
        let published = self.published.as_ref();
        let published = published.filter(|(of, _, _)| *of == round);
        let published = published.map(|(_, addr, port)| (addr.clone(), *port));
        let known = (joined.master_addr.clone(), joined.master_port);
        HeldRound {
            round,
            rank: joined.rank,
            master: Some(known)
                .filter(|(addr, _)| !addr.is_empty())
                .or(published),
            succeeded: self.succeeded == Some(round),
            size: joined.world_size,
            host: self.recoverable.and_then(|(_, host)| host),
        }
    }
}
