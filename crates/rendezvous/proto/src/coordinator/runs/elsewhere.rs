//! Members of a round whose coordinator was at another address, so that it is unknown whether it
//! has ended.
//!
//! A coordinator without a record knows that the one before has ended if that listened at its own
//! address (`recovering.rs`). Where members have reached theirs at another one (a service with a
//! separate address, whose process was started on another machine; a name or an address that has
//! moved), it may live, and have a round with others. So the run *is undecided*:
//!
//! * The members have a session here, and obey the coordinator that they have obeyed, at its epoch:
//!   if they reach it again, they resume there as if nothing had happened.
//! * They are notified of nothing, and lose nothing: an agent that is not here may be there.
//!   Newcomers wait.
//! * No record is written. So a process that is started again finds the members as this one has.
//! * It ends when the last coordinator is found to have ended: the user confirms that
//!   (`Origin::recover`, with a new process), or a member has reached it where this one listens.
//!   Then it is a recovery without a record.
//!
//! A coordinator that has a separate round in the run does not wait: there are two clusters then,
//! and members of the other one are notified that their round is over. Nor do voters wait, whose
//! record is replicated.

use super::round::Round;
use super::{Effect, Run};
use crate::Rule;
use crate::coordinator::wire::{Authority, Event, HeldRound, LastCoordinator};
use rdzv_core::machine::Outbox;
use rdzv_core::reminder;
use rdzv_core::time::Now;

impl Run {
    /// The coordinator of the round, if it is unknown whether that has ended.
    pub(super) fn elsewhere(&self) -> Option<&LastCoordinator> {
        self.round.recovery()?.elsewhere.as_ref()
    }

    /// `true` if the run is undecided.
    pub(in crate::coordinator) fn is_undecided(&self) -> bool {
        self.elsewhere().is_some()
    }

    /// `true` if this coordinator elsewhere makes the run undecided, or can.
    pub(in crate::coordinator) fn may_be_of(&self, last: &LastCoordinator) -> bool {
        match self.elsewhere() {
            Some(known) => known.cluster == last.cluster,
            None => self.knows_no_round() && self.origin.rules.has(Rule::OthersMayCoordinate),
        }
    }

    /// The coordinator that its agents obey, instead of this one.
    pub(in crate::coordinator) fn obeyed(&self, ours: Authority) -> Authority {
        self.elsewhere().map_or(ours, |last| Authority {
            cluster: last.cluster,
            epoch: last.epoch,
            ..ours
        })
    }

    /// An agent comes from a coordinator elsewhere.
    ///
    /// `known`: the last round that it was in.
    pub(in crate::coordinator) fn leave_undecided(
        &mut self,
        now: Now,
        last: &LastCoordinator,
        known: Option<&HeldRound>,
        ours: Authority,
        out: &mut Outbox<Effect>,
    ) {
        let Some(known) = known else {
            // Members need a moment to come.
            return self.had_coordinators(last.epoch.saturating_add(1));
        };
        let was_undecided = self.is_undecided();
        self.recover_unnoted(now, known, Some(last), out);
        if !was_undecided && self.is_undecided() {
            // Newcomers obey it as well: what they report to the next coordinator has to be the
            // same.
            let obeyed = self.obeyed(ours);
            for (node, agent) in &self.agents {
                if agent.attempt().is_some() {
                    out.push(Effect::Notify(node.clone(), Event::Attached(obeyed)));
                }
            }
        }
    }

    /// The coordinator of a cluster has certainly ended.
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

    /// Logs that the run is undecided, here and where the members are.
    pub(super) fn say_undecided(&self, now: Now, out: &mut Outbox<Effect>) {
        let (Some(last), Some(recovering)) = (self.elsewhere(), self.recovering(now)) else {
            return;
        };
        out.push(Effect::Recovering(recovering));
        for node in self.nodes.participants.keys() {
            let agent = self.agents.get(node);
            if agent.is_some_and(|agent| agent.join.from.is_some()) {
                let address = last.address.clone();
                out.push(Effect::Notify(node.clone(), Event::Undecided { address }));
            }
        }
    }
}
