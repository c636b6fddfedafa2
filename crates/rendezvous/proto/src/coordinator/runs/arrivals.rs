//! Joining and leaving, and who is notified.
//!
//! | node | while the round | goes to |
//! |---|---|---|
//! | anybody | forms, and has room | the participants |
//! | anybody | forms, and the room is for those who may come back | the surplus nodes |
//! | anybody | is complete, below max nodes | the wait list |
//! | anybody | is complete, at max nodes | the surplus nodes |
//!
//! A participant that joins again leaves its round first. When the last participant of a complete
//! round has left it, the next one forms, of those who wait; if nothing was heard of any of them, `silent.rs` decides.

use super::{Effect, Phase, Run};
use crate::NodeDesc;
use crate::coordinator::wire::Event;
use rdzv_core::machine::Outbox;
use rdzv_core::time::Now;

impl Run {
    /// A native agent wants to be in the next round.
    pub(super) fn arrive(&mut self, now: Now, node: &NodeDesc, out: &mut Outbox<Effect>) {
        if self.recovery.is_some() {
            self.leaves_round(node);
            if let Some(rank) = self.state.participants.remove(node) {
                let why = || format!("node {node} joins again");
                return self.left_while_recovering(now, rank, why, out);
            }
            return self.account_for(now, node, out);
        }
        if self.state.complete && self.state.participants.contains_key(node) {
            self.leaves_round(node);
            self.remove_participant(now, node);
            self.announce_change(&format!("node {node} joins again"), out);
        }
        self.awaited.remove(node);
        if !self.state.participants.contains_key(node) {
            self.admit(now, node);
        }
        if self.state.complete && self.state.wait_list.contains(node) {
            self.announce_change(&format!("node {node} waits to join"), out);
        }
        self.advance(now, out);
    }

    /// A node is gone for good; `how` is the end of a sentence about it.
    pub(super) fn depart(
        &mut self,
        now: Now,
        node: &NodeDesc,
        how: &str,
        out: &mut Outbox<Effect>,
    ) {
        self.awaited.remove(node);
        self.torchrun.remove(node);
        let rank = self.state.participants.get(node).copied();
        let participated = rank.is_some();
        self.state.wait_list.remove(node);
        self.state.redundancy_list.remove(node);
        self.state.last_heartbeats.remove(node);
        self.dirty = true;
        if participated {
            let complete = self.state.complete;
            self.remove_participant(now, node);
            if complete {
                self.announce_change(&format!("node {node} {how}"), out);
            }
        }
        if let Some(rank) = rank {
            self.left_while_recovering(now, rank, || format!("node {node} {how}"), out);
        }
        self.advance(now, out);
    }

    /// Puts a node that is in none of the lists into one of them, or moves it on.
    pub(super) fn admit(&mut self, now: Now, node: &NodeDesc) {
        let state = &mut self.state;
        let taken = state.participants.len();
        let max = self.settings.max_nodes as usize;
        self.dirty = true;
        if state.complete {
            if state.wait_list.contains(node) || state.redundancy_list.contains(node) {
                return;
            }
            match taken < max {
                true => state.wait_list.insert(node.clone()),
                false => state.redundancy_list.insert(node.clone()),
            };
        } else if taken + self.awaited.len() < max {
            state.wait_list.remove(node);
            state.redundancy_list.remove(node);
            state.participants.insert(node.clone(), 0);
            self.call_last(now);
        } else {
            state.wait_list.remove(node);
            state.redundancy_list.insert(node.clone());
        }
    }

    /// Takes a participant out, and with the last one of a complete round begins the next.
    pub(super) fn remove_participant(&mut self, now: Now, node: &NodeDesc) {
        let state = &mut self.state;
        state.participants.remove(node);
        state.last_heartbeats.remove(node);
        self.dirty = true;
        let is_last = state.complete && state.participants.is_empty();
        if is_last && self.note.silent {
            self.await_word(now);
        } else if is_last && self.recovery.is_none() {
            state.complete = false;
            self.number_next_round();
            self.begin_round(now);
        }
        if !self.state.complete && self.state.participants.len() < self.settings.min_nodes as usize
        {
            self.state.deadline = None;
            self.last_call = None;
        }
    }

    /// Announces to the participants of the complete round, once, that it does not hold any more.
    pub(super) fn announce_change(&mut self, reason: &str, out: &mut Outbox<Effect>) {
        let Some(round) = self.announced.filter(|_| !self.change_announced) else {
            return;
        };
        if self.is_undecided() {
            return;
        }
        self.change_announced = true;
        for (node, agent) in &self.agents {
            if agent.phase == Phase::Member {
                let event = Event::Membership {
                    round,
                    waiting: self.state.wait_list.len() as u32,
                    reason: reason.to_owned(),
                };
                out.push(Effect::Notify(node.clone(), event));
            }
        }
    }
}
