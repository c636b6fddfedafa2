//! Members of a round whose coordinator was at another address, of which nobody knows whether it has ended.
//!
//! A coordinator without a note knows that the one before has ended if that listened at its own address (`recovery.rs`). Where
//! members have reached theirs at another one (a service with an address of its own, whose process was started on another
//! machine; a name or an address that has moved), it may live, and have a round with others. So the run *is undecided*:
//!
//! * The members have a session here, and obey the coordinator that they have obeyed, at its epoch: if they reach it again, they
//!   go on there as if nothing had been.
//! * They are told of nothing, and lose nothing: who is gone from here may be there. Newcomers wait.
//! * No note is written. So a process that is started again finds the members as this one has.
//! * It ends when the last coordinator is found to have ended: people say so (`Origin::recover`, with a new process), or a member has
//!   reached it where this one listens. Then it is a recovery without a note.
//!
//! A coordinator that has a round of its own in the run waits for nobody: there are two clusters then, and members of
//! the other one are told that their round is over. Nor do voters wait, whose note is replicated.

use super::{Effect, Run};
use crate::coordinator::wire::{Authority, Event, HeldRound, LastCoordinator};
use crate::mutant::{Mutant, is_broken};
use rdzv_core::machine::Outbox;
use rdzv_core::reminder;
use rdzv_core::time::Now;

impl Run {
    /// The coordinator of the round, if nobody knows whether it has ended.
    pub(super) fn elsewhere(&self) -> Option<&LastCoordinator> {
        self.recovery.as_ref()?.elsewhere.as_ref()
    }

    /// Whether the run is undecided.
    pub(in crate::coordinator) fn is_undecided(&self) -> bool {
        self.elsewhere().is_some()
    }

    /// Whether the run is undecided, or can be, because of a coordinator elsewhere.
    pub(in crate::coordinator) fn may_be_of(&self, last: &LastCoordinator) -> bool {
        match self.elsewhere() {
            Some(known) => known.cluster == last.cluster,
            None => {
                let is_unknown = self.announced.is_none() && self.note.members.is_empty();
                let is_open = self.recovery.is_none() && !self.state.closed;
                is_unknown && is_open && !is_broken(Mutant::NobodyElsewhere)
            }
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

    /// Somebody comes from a coordinator elsewhere, with the last round that it knows, if it has been in one.
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
            return self.had_coordinators(last.epoch);
        };
        let was_undecided = self.is_undecided();
        self.recover_unnoted(now, known, Some(last), out);
        if !was_undecided && self.is_undecided() {
            // Newcomers obey it as well: what they say to the next coordinator has to be the same.
            let obeyed = self.obeyed(ours);
            for (node, agent) in &self.agents {
                if agent.attempt.is_some() {
                    out.push(Effect::Notify(node.clone(), Event::Attached(obeyed)));
                }
            }
        }
    }

    /// The coordinator of a cluster has certainly ended.
    pub(in crate::coordinator) fn decide(&mut self, now: Now, cluster: u64) {
        if let Some(recovery) = &mut self.recovery {
            let ended = |last: &mut LastCoordinator| last.cluster == cluster;
            if recovery.elsewhere.take_if(ended).is_some() {
                recovery.began = now.mono;
                (recovery.at, recovery.say_at) = (now.mono, now.mono + reminder::FIRST);
            }
        }
    }

    /// People are told, here and where the members are.
    pub(super) fn say_undecided(&self, now: Now, out: &mut Outbox<Effect>) {
        let Some(recovering) = self.recovering(now) else {
            return;
        };
        let Some(address) = recovering.elsewhere.clone() else {
            return;
        };
        out.push(Effect::Recovering(recovering));
        for node in self.state.participants.keys() {
            let agent = self.agents.get(node);
            if agent.is_some_and(|agent| agent.says_from) {
                let address = address.clone();
                out.push(Effect::Notify(node.clone(), Event::Undecided { address }));
            }
        }
    }
}
