//! Joining and leaving.
//!
//! | node | while the round | goes to |
//! |---|---|---|
//! | any | forms, and has room | the participants |
//! | any | forms, and the room is for expected nodes | the spare nodes |
//! | any | is complete, below `max_nodes` | the wait list |
//! | any | is complete, at `max_nodes` | the spare nodes |
//!
//! During a search for participants, a node that joins is in no list yet. A participant that joins
//! again leaves its round first. When the last participant of a complete round has left it, the
//! next round forms with the waiting nodes. If all participants were lost by silence, `silent.rs`
//! decides.

use super::Run;
use super::round::Round;
use crate::NodeDesc;
use rdzv_core::time::Now;

impl Run {
    pub(super) fn arrive(&mut self, now: Now, node: &NodeDesc) {
        if self.round.search().is_some() {
            self.leaves_round(node);
            if let Some(rank) = self.nodes.participants.remove(node) {
                let why = || format!("node {node} joins again");
                return self.left_while_searching(now, rank, why);
            }
            return self.account_for(now, node);
        }
        if self.round.is_formed() && self.nodes.participants.contains_key(node) {
            let was_torn = self.record.torn;
            self.leaves_round(node);
            let lost = self.agents.get(node).map(|agent| &agent.join.lost);
            let lost: Vec<String> = lost.into_iter().flatten().map(u32::to_string).collect();
            self.break_round(&match &lost[..] {
                [] => format!("node {node} joins again"),
                [rank] => format!("node {node} has lost rank {rank} and joins again"),
                ranks => format!(
                    "node {node} has lost ranks {} and joins again",
                    ranks.join(", ")
                ),
            });
            self.remove_participant(now, node);
            // If the other participants are lost now, the next coordinator need not wait for them.
            if !was_torn && !self.nodes.participants.is_empty() {
                self.note();
            }
        }
        self.await_no_more(node);
        if !self.nodes.participants.contains_key(node) {
            self.admit(now, node);
        }
        if self.round.is_formed() && self.nodes.waiting.contains(node) {
            self.break_round(&format!("node {node} waits to join"));
        }
        self.advance(now);
    }

    /// Handles a node that is lost or has left.
    ///
    /// `how` completes a sentence that begins with the node's name.
    pub(super) fn depart(&mut self, now: Now, node: &NodeDesc, how: &str) {
        self.await_no_more(node);
        self.torchrun.heartbeats.remove(node);
        self.nodes.waiting.remove(node);
        self.nodes.surplus.remove(node);
        self.torchrun.outdate();
        if let Some(rank) = self.nodes.participants.get(node).copied() {
            let reason = format!("node {node} {how}");
            if self.round.is_formed() {
                self.break_round(&reason);
            }
            self.remove_participant(now, node);
            self.left_while_searching(now, rank, || reason);
        }
        self.advance(now);
    }

    /// Stops expecting a node of the last round.
    fn await_no_more(&mut self, node: &NodeDesc) {
        if let Round::Forming(forming) = &mut self.round {
            forming.awaited.remove(node);
        } else if let Some(formed) = self.round.formed_mut() {
            formed.awaited.remove(node);
        }
    }

    /// Inserts a node into the list that matches the round's state.
    pub(super) fn admit(&mut self, now: Now, node: &NodeDesc) {
        let max = self.settings.max_nodes as usize;
        let (has_room, size) = (self.taken() < max, self.size());
        let nodes = &mut self.nodes;
        self.torchrun.outdate();
        if self.round.is_formed() {
            if nodes.waiting.contains(node) || nodes.surplus.contains(node) {
                return;
            }
            if size < max {
                nodes.waiting.insert(node.clone());
            } else {
                nodes.surplus.insert(node.clone());
            }
        } else if has_room {
            nodes.waiting.remove(node);
            nodes.surplus.remove(node);
            nodes.participants.insert(node.clone(), 0);
            self.call_last(now);
        } else {
            nodes.waiting.remove(node);
            nodes.surplus.insert(node.clone());
        }
    }

    /// Removes a participant.
    ///
    /// After the last participant of a complete round has left, the next round begins, unless all
    /// were lost by silence.
    pub(super) fn remove_participant(&mut self, now: Now, node: &NodeDesc) {
        self.nodes.participants.remove(node);
        self.torchrun.outdate();
        if self.round.is_formed() && self.nodes.participants.is_empty() {
            if self.record.silent {
                self.await_word(now);
            } else if let Round::Held(_) | Round::Over(_) = self.round {
                self.begin_next(now);
            }
        }
        self.end_last_call_of_few();
    }
}
