//! An agent's knowledge of its coordinator, which outlives a connection.

use std::time::Duration;

use super::FormedRound;
use crate::coordinator::wire::{Authority, HeldRound, LastCoordinator};

/// Time between two messages about a missing coordinator.
const REMIND: Duration = Duration::from_secs(10);

/// Time without a coordinator before the first message.
///
/// The message may appear later, at the end of an attempt to connect.
const FIRST: Duration = Duration::from_millis(1500);

/// An agent's knowledge of its coordinator, and its reports to the coordinator.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    /// Authority of the last accepted coordinator.
    pub(super) authority: Option<Authority>,
    /// Numeric address of the coordinator; empty if it is unknown.
    pub(super) address: String,
    /// Last recoverable round, and the rank that hosts the coordinator, if any.
    pub(super) recoverable: Option<(u64, Option<u32>)>,
    /// Last round of this agent, if the round is recoverable.
    pub(super) last: Option<HeldRound>,
    /// Round, host and port of the workers' store that this agent has published.
    pub(super) published: Option<(u64, String, u16)>,
    /// Round whose workers have succeeded on this node.
    pub(super) succeeded: Option<u64>,
    /// Reason for which this agent has failed permanently.
    pub(super) failed: Option<String>,
    /// Time without a coordinator that the last message reported.
    pub(super) reminded_after: Option<Duration>,
}

impl Attachment {
    /// Returns the time to wait for the next coordinator, if there will be one.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let timeout = self.authority?.timeout;
        (!timeout.is_zero()).then_some(timeout)
    }

    /// `true` if a round stays valid without a connection.
    pub(super) fn is_recoverable(&self, round: u64) -> bool {
        let announced = self.recoverable.map(|(round, _)| round);
        self.timeout().is_some() && announced == Some(round)
    }

    /// Returns the coordinator that this agent obeyed last.
    pub(super) fn last_coordinator(&self) -> LastCoordinator {
        let authority = self.authority.unwrap_or_default();
        LastCoordinator {
            cluster: authority.cluster,
            epoch: authority.epoch,
            address: self.address.clone(),
        }
    }

    /// Returns the reason for which the agent must not obey a coordinator.
    pub(super) fn fault(&self, authority: &Authority) -> Option<String> {
        let ours = self.authority?;
        (authority.cluster == ours.cluster && authority.epoch < ours.epoch).then(|| {
            format!(
                "it has epoch {}, but a newer coordinator has epoch {}",
                authority.epoch, ours.epoch
            )
        })
    }

    /// `true` if a message about the missing coordinator is due.
    ///
    /// `elapsed` is the time without a coordinator.
    pub(super) fn is_to_tell(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed >= self.reminded_after.map_or(FIRST, |after| after + REMIND);
        if is_due {
            self.reminded_after = Some(elapsed);
        }
        is_due
    }

    /// Returns a round as this agent knows it.
    pub(super) fn held(&self, joined: &FormedRound) -> HeldRound {
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
