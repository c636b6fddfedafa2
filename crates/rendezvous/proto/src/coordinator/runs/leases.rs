//! The fence of a round, and the leases of its participants.
//!
//! A lease needs a majority that survives the loss of any node. A round can therefore have a fence
//! only while the coordinator has three voters or more. The record contains a lease for all
//! participants, or for none:
//!
//! | event | recorded before | the participants receive |
//! |---|---|---|
//! | a round forms with three voters | the lease | `Fence`, on; then `Formed` |
//! | a round holds, and there are three voters | – | `Fence`, on |
//! | each participant reports a lease | the lease | – |
//! | there are fewer than three voters | no lease | `Fence`, off |
//! | an agent reattaches | – | `Fence`, on if recorded, or with three voters if it may have a lease |
//!
//! A recorded lease guarantees that the workers of each silent participant are suspended in time.
//! The next coordinator relies on it. A participant that may have a lease is not lost by silence
//! before the end of the lease, even without a record. It has none after it has sent `Lifted`.

use std::time::Duration;

use super::round::Round;
use super::{Effect, Phase, Run};
use crate::coordinator::wire::{Event, Standing};
use crate::{FencePolicy, NodeDesc, Rule, fence};

/// Minimum number of voters that keep a majority when any node is lost.
const LEAST_VOTERS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentLease {
    None,
    /// A granted lease that the agent has not reported yet.
    Granted,
    /// A lease that the agent has reported.
    Held,
}

impl Run {
    /// `true` if the round can have a fence.
    fn can_have_fence(&self) -> bool {
        let mut participants = self.nodes.participants.keys();
        self.voters >= LEAST_VOTERS
            && self.is_recoverable()
            && participants.all(|node| self.accepts_fence(node))
    }

    fn accepts_fence(&self, node: &NodeDesc) -> bool {
        let agent = self.agents.get(node);
        agent.is_some_and(|agent| agent.join.settings.fence == FencePolicy::Auto)
    }

    /// `true` if an agent is in the round, and may have a lease.
    fn may_have_lease(&self, node: &NodeDesc) -> bool {
        matches!(self.phase(node), Some(Phase::Member { lease }) if lease != AgentLease::None)
    }

    fn lease(&self) -> Duration {
        let size = self.nodes.participants.len() as u32;
        fence::lease(self.settings.node_timeout, size)
    }

    /// Assigns a new round a fence, if it can have one.
    pub(super) fn choose_fence(&mut self) {
        if self.can_have_fence() {
            self.record.lease = self.lease();
        }
    }

    /// Returns how long a participant may be silent, according to the record.
    ///
    /// Until then, its workers may run. Zero if the record has no lease.
    pub(in crate::coordinator) fn fence(&self) -> Duration {
        if self.record.lease.is_zero() {
            Duration::ZERO
        } else {
            fence::lost_after(self.record.lease, self.origin.rules)
        }
    }

    /// Returns how long one agent may be silent, even without a record.
    ///
    /// Zero if the agent is not in the round, or if neither the agent nor the record has a lease.
    pub(in crate::coordinator) fn fence_of(&self, node: &NodeDesc) -> Duration {
        let rules = self.origin.rules;
        if self.may_have_lease(node) && rules.has(Rule::LeasesAreAwaited) {
            fence::lost_after(self.lease().max(self.record.lease), rules)
        } else if self.is_member(node) {
            self.fence()
        } else {
            Duration::ZERO
        }
    }

    pub(in crate::coordinator) fn count_voters(&mut self, voters: u32) {
        self.voters = voters;
        self.review_fence();
    }

    /// Turns the fence of the round on or off, if necessary.
    pub(super) fn review_fence(&mut self) {
        let is_held = match self.round {
            Round::Held(_) => true,
            Round::Over(_) => false,
            _ => return,
        };
        if self.can_have_fence() {
            if is_held && self.record.lease.is_zero() {
                // Participants now ask for a lease.
                let participants = self.nodes.participants.keys().cloned();
                for node in participants.collect::<Vec<_>>() {
                    self.grant(&node);
                    self.announce_fence(&node, true);
                }
                self.record_fence();
            }
            return;
        }
        if !self.record.lease.is_zero() {
            self.record.lease = Duration::ZERO;
            self.note();
        }
        let may_have = |node: &&NodeDesc| self.may_have_lease(node);
        let affected: Vec<_> = self.agents.keys().filter(may_have).cloned().collect();
        for node in affected {
            self.announce_fence(&node, false);
        }
    }

    /// Records that the round has a fence if each participant has reported a lease.
    fn record_fence(&mut self) {
        let lease = AgentLease::Held;
        let holds = |node| self.phase(node) == Some(Phase::Member { lease });
        if matches!(self.round, Round::Held(_))
            && self.record.lease.is_zero()
            && self.nodes.participants.keys().all(holds)
            && self.can_have_fence()
        {
            self.record.lease = self.lease();
            self.note();
        }
    }

    /// Repeats the event about the fence to a participant that reattaches.
    ///
    /// The participant may not have received the last event.
    pub(super) fn repeat_fence(&mut self, node: &NodeDesc) {
        let is_recorded = !self.record.lease.is_zero();
        let acts = is_recorded || self.may_have_lease(node) && self.voters >= LEAST_VOTERS;
        self.announce_fence(node, acts);
    }

    /// Notifies a participant whether its round has a fence.
    pub(super) fn announce_fence(&mut self, node: &NodeDesc, acts: bool) {
        if self.accepts_fence(node) {
            let round = self.round.number();
            let event = Event::Fence { round, acts };
            self.effects.push(Effect::notify(node, event));
        }
    }

    /// Registers that an agent may have a lease from now on.
    pub(in crate::coordinator) fn grant(&mut self, node: &NodeDesc) {
        let agent = self.agents.get_mut(node);
        if let Some(Phase::Member { lease }) = agent.map(|agent| &mut agent.phase)
            && *lease == AgentLease::None
        {
            *lease = AgentLease::Granted;
        }
    }

    pub(in crate::coordinator) fn reports_lease(&mut self, node: &NodeDesc, standing: Standing) {
        let agent = self.agents.get_mut(node);
        let Some(Phase::Member { lease }) = agent.map(|agent| &mut agent.phase) else {
            return;
        };
        let reported = match standing {
            Standing::Asks => return,
            Standing::Holds => AgentLease::Held,
            Standing::Lifted => AgentLease::None,
        };
        if std::mem::replace(lease, reported) != reported && reported == AgentLease::Held {
            self.record_fence();
        }
    }
}
