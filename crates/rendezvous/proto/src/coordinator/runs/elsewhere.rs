//! Members of a round whose coordinator, elsewhere, may still be running.
//!
//! A coordinator without a record knows that its predecessor has ended if the predecessor listened
//! at the same address (`recovering.rs`). If members have reached the predecessor at another
//! address, it may still be running, and may have a round with other agents. For example, a service
//! address or a name has moved to another machine. The run then *is undecided*:
//!
//! * The members have a session here, but still obey the previous coordinator, at its epoch. If
//!   they reach it again, they resume there as if nothing had happened.
//! * The coordinator does not notify them that their round is over. It declares no member lost,
//!   because an agent that is not here may be there. New agents wait.
//! * The coordinator writes no record. So after a restart, it finds the members in the same state.
//! * The state ends once it is certain that the previous coordinator has ended. Either the user
//!   confirms its end (`Origin::recover`, with a new process), or a member has reached it at one of
//!   this coordinator's addresses. Then a recovery without a record follows.
//!
//! A coordinator with a separate round in the run does not wait, because there are two clusters. It
//! notifies members of the other cluster that their round is over. An elected coordinator does not
//! wait either, because its record is replicated.

use super::round::Round;
use super::{Effect, Run};
use crate::Rule;
use crate::coordinator::wire::{Authority, Event, HeldRound, LastCoordinator};
use rdzv_core::reminder;
use rdzv_core::time::Now;

impl Run {
    /// Returns the coordinator elsewhere that may still be running, if any.
    pub(super) fn elsewhere(&self) -> Option<&LastCoordinator> {
        self.round.recovery()?.elsewhere.as_ref()
    }

    /// `true` if the run is undecided.
    pub(in crate::coordinator) fn is_undecided(&self) -> bool {
        self.elsewhere().is_some()
    }

    /// `true` if a coordinator elsewhere makes the run undecided, or could do so.
    pub(in crate::coordinator) fn may_be_of(&self, last: &LastCoordinator) -> bool {
        match self.elsewhere() {
            Some(known) => known.cluster == last.cluster,
            None => self.knows_no_round() && self.origin.rules.has(Rule::OthersMayCoordinate),
        }
    }

    /// Returns the coordinator that the agents of the run obey.
    pub(in crate::coordinator) fn obeyed(&self, ours: Authority) -> Authority {
        self.elsewhere().map_or(ours, |last| Authority {
            cluster: last.cluster,
            epoch: last.epoch,
            ..ours
        })
    }

    /// Handles an agent that attaches after a coordinator elsewhere.
    ///
    /// `known` is the last round of the agent.
    pub(in crate::coordinator) fn leave_undecided(
        &mut self,
        now: Now,
        last: &LastCoordinator,
        known: Option<&HeldRound>,
        ours: Authority,
    ) {
        let Some(known) = known else {
            // A member may report the round later. Until then, its number is unknown.
            return self.had_coordinators(last.epoch.saturating_add(1));
        };
        let was_undecided = self.is_undecided();
        self.recover_unnoted(now, known, Some(last));
        if !was_undecided && self.is_undecided() {
            // New agents also obey that coordinator, because all agents must report the same
            // coordinator to the next one.
            let obeyed = self.obeyed(ours);
            for (node, agent) in &self.agents {
                if agent.join.can_reattach() {
                    self.effects
                        .push(Effect::notify(node, Event::Attached(obeyed)));
                }
            }
        }
    }

    /// Registers that the coordinator of a cluster has certainly ended.
    pub(in crate::coordinator) fn decide(&mut self, now: Now, cluster: u64) {
        if let Round::Recovering(_, recovery) = &mut self.round {
            let ended = |last: &mut LastCoordinator| last.cluster == cluster;
            if recovery.elsewhere.take_if(ended).is_some() {
                let search = &mut recovery.search;
                search.began = now.mono;
                (search.at, search.say_at) = (now.mono, now.mono + reminder::FIRST);
            }
        }
    }

    /// Logs that the run is undecided, here and on the nodes of the members.
    pub(super) fn say_undecided(&mut self, now: Now) {
        let last = self.elsewhere().map(|last| last.address.clone());
        let (Some(last), Some(recovering)) = (last, self.recovering(now)) else {
            return;
        };
        self.log_recovery(recovering);
        for node in self.nodes.participants.keys() {
            let agent = self.agents.get(node);
            if agent.is_some_and(|agent| agent.join.from.is_some()) {
                let address = last.clone();
                self.effects
                    .push(Effect::notify(node, Event::Undecided { address }));
            }
        }
    }
}
