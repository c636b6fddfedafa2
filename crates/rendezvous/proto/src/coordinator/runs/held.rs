//! A complete round that holds, and its end.

use super::round::Round;
use super::{Effect, Phase, Run};
use crate::NodeDesc;
use crate::coordinator::wire::Event;
use rdzv_core::machine::Outbox;
use rdzv_core::time::Now;

impl Run {
    /// Notifies the participants, once, that the round is over.
    ///
    /// During a recovery, this notifies the participants that have reattached. If another
    /// coordinator of the run may still be running, this has no effect.
    pub(super) fn break_round(&mut self, reason: &str, out: &mut Outbox<Effect>) {
        if self.is_undecided() {
            return;
        }
        match &mut self.round {
            Round::Held(formed) => self.round = Round::Over(std::mem::take(formed)),
            Round::Recovering(_, recovery) if !recovery.is_ended => recovery.is_ended = true,
            _ => return,
        }
        self.notify_members(&self.membership(self.round.number(), reason), out);
    }

    /// Returns the event that reports the end of a round.
    pub(super) fn membership(&self, round: u64, reason: &str) -> Event {
        Event::Membership {
            round,
            waiting: self.nodes.waiting.len() as u32,
            reason: reason.to_owned(),
        }
    }

    /// Notifies each agent that is in the round.
    pub(super) fn notify_members(&self, event: &Event, out: &mut Outbox<Effect>) {
        for (node, agent) in &self.agents {
            if let Phase::Member { .. } = agent.phase {
                out.push(Effect::Notify(node.clone(), event.clone()));
            }
        }
    }

    /// Moves spare nodes to the wait list if the round is no longer full.
    ///
    /// `torchrun` agents in the round do not rejoin when a node is lost, only when a node waits.
    pub(super) fn step_in(&mut self, now: Now, out: &mut Outbox<Effect>) {
        if self.nodes.participants.len() >= self.settings.max_nodes as usize {
            return;
        }
        let surplus = self.nodes.surplus.iter();
        let surplus = surplus.filter(|node| self.is_joining(node));
        for node in surplus.cloned().collect::<Vec<_>>() {
            self.nodes.surplus.remove(&node);
            self.restart_join_timer(now, &node);
            self.break_round(&format!("node {node} waits to join"), out);
            self.nodes.waiting.insert(node);
            self.torchrun.outdate();
        }
    }

    /// Handles the success of a participant's workers.
    pub(in crate::coordinator) fn succeeded(
        &mut self,
        now: Now,
        node: &NodeDesc,
        round: u64,
        out: &mut Outbox<Effect>,
    ) {
        if !self.nodes.participants.contains_key(node) {
            return;
        }
        let formed = self.round.formed_mut();
        if let Some(formed) = formed.filter(|formed| formed.number == round) {
            formed.succeeded.insert(node.clone());
            self.end_search_if_due(now, out);
            self.announce_success(out);
        }
    }

    /// Notifies the participants if all workers of the round have succeeded.
    pub(super) fn announce_success(&mut self, out: &mut Outbox<Effect>) {
        let (Round::Held(formed) | Round::Over(formed)) = &self.round else {
            return;
        };
        let participants = &self.nodes.participants;
        let is_whole = self.is_recoverable() && participants.len() == self.record.members.len();
        let has_succeeded = |node| formed.succeeded.contains(node);
        if !is_whole || !(self.record.succeeded || participants.keys().all(has_succeeded)) {
            return;
        }
        if !self.record.succeeded {
            self.record.succeeded = true;
            out.push(Effect::Note(self.record.clone()));
        }
        for node in &formed.succeeded {
            let round = formed.number;
            let event = Event::AllSucceeded { round };
            out.push(Effect::Notify(node.clone(), event));
        }
    }

    /// Notifies all other agents that an agent has failed permanently.
    pub(in crate::coordinator) fn failed(
        &mut self,
        failed: &NodeDesc,
        reason: &str,
        out: &mut Outbox<Effect>,
    ) {
        // An agent that reattaches sends its failure again.
        if let Some(formed) = self.round.formed_mut()
            && !formed.failed.insert(failed.clone())
            && self.began.is_some()
        {
            return;
        }
        let event = Event::PeerFailed {
            node: failed.to_string(),
            reason: reason.to_owned(),
        };
        for node in self.agents.keys().filter(|node| *node != failed) {
            out.push(Effect::Notify(node.clone(), event.clone()));
        }
    }
}
