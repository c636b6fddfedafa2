//! A complete round that holds, and its end.

use std::time::Duration;

use super::round::Round;
use super::{Effect, Phase, Run};
use crate::coordinator::note::LEFT_AFTER_SUCCESS;
use crate::coordinator::wire::Event;
use crate::{NodeDesc, Rule};
use rdzv_core::time::{Mono, Now};

/// Time in which a restarted agent can replace the last running node.
///
/// The launcher restarts a killed agent after a pause of at most 0.5 s.
const SUCCESSOR_WITHIN: Duration = Duration::from_secs(3);

/// End of a sentence to a successful node that need not wait any more.
const ALL_SUCCEEDED: &str = ", and the workers of all other nodes have succeeded";

impl Run {
    /// Notifies the participants, once, that the round is over.
    ///
    /// During a recovery, this notifies the participants that have reattached. If another
    /// coordinator of the run may still be running, this has no effect.
    pub(super) fn break_round(&mut self, reason: &str) {
        if self.is_undecided() {
            return;
        }
        match &mut self.round {
            Round::Held(formed) => self.round = Round::Over(std::mem::take(formed)),
            Round::Recovering(_, recovery) if !recovery.is_ended => recovery.is_ended = true,
            _ => return,
        }
        if let Some(formed) = self.round.formed_mut() {
            reason.clone_into(&mut formed.reason);
        }
        self.notify_members(&self.membership(self.round.number(), reason));
    }

    pub(super) fn membership(&self, round: u64, reason: &str) -> Event {
        Event::Membership {
            round,
            waiting: self.nodes.waiting.len() as u32,
            reason: reason.to_owned(),
        }
    }

    /// Notifies each agent that is in the round.
    pub(super) fn notify_members(&mut self, event: &Event) {
        for (node, agent) in &self.agents {
            if let Phase::Member { .. } = agent.phase {
                self.effects.push(Effect::notify(node, event.clone()));
            }
        }
    }

    /// Answers the successful participants after the end of their round.
    ///
    /// They join the next round if another node does, because all workers restart together. They
    /// end if every other participant is lost or has succeeded too. Until then they wait.
    pub(in crate::coordinator) fn answer_succeeded(&mut self, now: Now) {
        let Round::Over(formed) = &mut self.round else {
            return;
        };
        let ends = formed.ends.take();
        let participants = &self.nodes.participants;
        let succeeded = formed.succeeded.difference(&formed.answered);
        let succeeded = succeeded.filter(|node| participants.contains_key(*node));
        let succeeded: Vec<NodeDesc> = succeeded.cloned().collect();
        if succeeded.is_empty() {
            return;
        }
        let reason = if let Some(node) = self.nodes.waiting.first() {
            format!("node {node} waits to join")
        } else {
            let is_done = |node| formed.succeeded.contains(node);
            if !participants.keys().all(is_done) {
                return;
            }
            let ends = ends.unwrap_or(now.mono + SUCCESSOR_WITHIN);
            if now.mono < ends {
                formed.ends = Some(ends);
                return;
            }
            format!("{}{}", formed.reason, ALL_SUCCEEDED)
        };
        formed.answered.extend(succeeded.iter().cloned());
        let event = self.membership(self.round.number(), &reason);
        for node in succeeded {
            self.effects.push(Effect::notify(&node, event.clone()));
        }
    }

    /// Returns the time at which participants whose workers have succeeded end.
    pub(super) fn answer_deadline(&self) -> Option<Mono> {
        self.round.formed()?.ends
    }

    /// Moves spare nodes to the wait list if the round is no longer full.
    ///
    /// `torchrun` agents in the round do not rejoin when a node is lost, only when a node waits.
    pub(super) fn step_in(&mut self, now: Now) {
        let is_full = self.size() >= self.settings.max_nodes as usize;
        if is_full || !self.origin.rules.has(Rule::SparesStepIn) {
            return;
        }
        let surplus = self.nodes.surplus.iter();
        let surplus = surplus.filter(|node| self.is_joining(node));
        for node in surplus.cloned().collect::<Vec<_>>() {
            self.nodes.surplus.remove(&node);
            self.call_spare(now, &node);
            self.break_round(&format!("node {node} waits to join"));
            self.nodes.waiting.insert(node);
            self.torchrun.outdate();
        }
    }

    pub(in crate::coordinator) fn succeeded(&mut self, now: Now, node: &NodeDesc, round: u64) {
        if !self.nodes.participants.contains_key(node) {
            return;
        }
        let formed = self.round.formed_mut();
        if let Some(formed) = formed.filter(|formed| formed.number == round) {
            formed.succeeded.insert(node.clone());
            self.end_search_if_due(now);
            self.announce_success();
        }
    }

    /// Handles a successful participant that leaves a held round.
    ///
    /// A round that holds continues without the node. Returns `false` if the round does not hold,
    /// or if the node is its last participant or has not succeeded.
    pub(super) fn leaves_after_success(&mut self, node: &NodeDesc) -> bool {
        let Round::Held(formed) = &mut self.round else {
            return false;
        };
        if self.nodes.participants.len() == 1 || !formed.succeeded.contains(node) {
            return false;
        }
        let Some(rank) = self.nodes.participants.remove(node) else {
            return false;
        };
        formed.left.insert(node.clone());
        formed.awaited.remove(node);
        self.torchrun.outdate();
        if let Some(member) = self.record.members.get_mut(rank as usize) {
            *member = LEFT_AFTER_SUCCESS;
            self.note();
        }
        true
    }

    /// Returns the number of nodes in the round.
    ///
    /// It includes the nodes that have left after the success of their workers.
    pub(super) fn size(&self) -> usize {
        let formed = self.round.formed();
        let left = formed.map_or(0, |formed| {
            let recorded = self.record.round == formed.number;
            let recorded = recorded.then(|| self.record.left_after_success());
            formed.left.len().max(recorded.unwrap_or(0))
        });
        self.nodes.participants.len() + left
    }

    /// Notifies the successful agents once all workers of the round have succeeded.
    pub(super) fn announce_success(&mut self) {
        let (Round::Held(formed) | Round::Over(formed)) = &self.round else {
            return;
        };
        let participants = &self.nodes.participants;
        let is_whole = self.is_recoverable() && self.record.is_whole(participants.len());
        let has_succeeded = |node| formed.succeeded.contains(node);
        if !is_whole || !(self.record.succeeded || participants.keys().all(has_succeeded)) {
            return;
        }
        let (round, succeeded) = (formed.number, formed.succeeded.clone());
        if !std::mem::replace(&mut self.record.succeeded, true) {
            self.note();
        }
        for node in &succeeded {
            self.effects
                .push(Effect::notify(node, Event::AllSucceeded { round }));
        }
    }

    /// Notifies all other agents that an agent has failed permanently.
    pub(in crate::coordinator) fn failed(&mut self, failed: &NodeDesc, reason: &str) {
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
            self.effects.push(Effect::notify(node, event.clone()));
        }
    }
}
