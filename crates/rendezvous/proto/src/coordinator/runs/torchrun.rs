//! torchrun's form of the state, and changes by agents of torchrun.
//!
//! Native agents write no heartbeats into the state. The coordinator writes a current heartbeat for
//! each that is not lost. An agent of torchrun is lost when its heartbeat has not changed for some
//! time on the coordinator's clock. So the clocks of agents do not matter for this decision.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::round::{Formed, Forming, LastCallEnd, Round};
use super::{Effect, Nodes, Phase, Run};
use crate::coordinator::keys;
use crate::{NodeDesc, RendezvousState, codec};
use rdzv_core::time::{Mono, Now, Wall};

/// The state under torchrun's key, and the data of torchrun's agents in it.
#[derive(Debug, Default)]
pub(super) struct TorchrunForm {
    /// Last heartbeat of each agent of torchrun.
    ///
    /// It consists of the time that the agent wrote, and the local time at which it was seen.
    pub(super) heartbeats: BTreeMap<NodeDesc, (Wall, Mono)>,
    has_naive_times: bool,
    value: Value,
    /// Last write of a coordinator under the key; `None` if there was none.
    written: Option<Mono>,
}

/// The value under torchrun's key.
#[derive(Debug, Default)]
enum Value {
    /// No agent of torchrun has needed a value, and no node has changed.
    #[default]
    Unused,
    /// The nodes have changed since the last write.
    Outdated,
    /// The value describes the current nodes.
    Current(Vec<u8>),
}

impl TorchrunForm {
    /// Marks the value as outdated, because the nodes have changed.
    pub(super) fn outdate(&mut self) {
        self.value = Value::Outdated;
    }
}

impl Run {
    /// Returns the state as agents of torchrun see it.
    ///
    /// `wall` is the heartbeat of all native agents.
    fn state(&self, wall: Wall) -> RendezvousState {
        let heartbeats = &self.torchrun.heartbeats;
        let theirs = heartbeats.iter().map(|(node, (wall, _))| (node, *wall));
        let ours = self.agents.keys().filter(|node| self.nodes.has(node));
        let ours = ours.map(|node| (node, wall));
        let all = theirs.chain(ours).map(|(node, wall)| (node.clone(), wall));
        let last_call = self.round.forming().and_then(|it| it.last_call);
        RendezvousState {
            round: self.round.number(),
            complete: self.round.is_formed(),
            deadline: last_call.map(|last_call| last_call.deadline),
            closed: self.is_closed(),
            participants: self.nodes.participants.clone(),
            wait_list: self.nodes.waiting.clone(),
            redundancy_list: self.nodes.surplus.clone(),
            last_heartbeats: all.collect(),
            has_naive_times: self.torchrun.has_naive_times,
        }
    }

    /// Adopts the value of torchrun's key before the first native agent joins.
    ///
    /// `written` is the last write of a coordinator under the key, if there was one.
    pub(in crate::coordinator) fn found(
        &mut self,
        now: Now,
        value: Option<&[u8]>,
        written: Option<Mono>,
    ) {
        let Some(value) = value else {
            return;
        };
        // A value that cannot be parsed is replaced like an empty one.
        if let Ok(Some(state)) = codec::from_value(value) {
            state.see_heartbeats(&mut self.torchrun.heartbeats, now.mono);
            let last_call = last_call_end(now, &state);
            let (round, complete, closed) = (state.round, state.complete, state.closed);
            self.take_nodes(state);
            (self.former, self.former_size) = (self.seats(), self.nodes.participants.len() as u32);
            self.round = match (closed, complete) {
                (true, was_formed) => Round::Closed {
                    number: round,
                    was_formed,
                },
                (false, true) => Round::Held(Formed {
                    awaited: self.former.keys().cloned().collect(),
                    ..Formed::new(round)
                }),
                (false, false) => Round::Forming(Forming {
                    number: round,
                    last_call,
                    older_ends: self.round.forming().and_then(|it| it.older_ends),
                    ..Forming::default()
                }),
            };
        }
        self.torchrun.value = Value::Current(value.to_vec());
        self.torchrun.written = written;
    }

    fn take_nodes(&mut self, state: RendezvousState) -> Nodes {
        self.torchrun.has_naive_times = state.has_naive_times;
        let nodes = Nodes {
            participants: state.participants,
            waiting: state.wait_list,
            surplus: state.redundancy_list,
        };
        std::mem::replace(&mut self.nodes, nodes)
    }

    /// `true` if the state has a heartbeat of a torchrun agent.
    pub(in crate::coordinator) fn has_torchrun(&self) -> bool {
        !self.torchrun.heartbeats.is_empty()
    }

    /// Updates the state in the store before an agent of torchrun accesses it.
    pub(in crate::coordinator) fn touching(&mut self, now: Now, writes: bool) {
        let age = now.mono.since(self.torchrun.written.unwrap_or(Mono::ZERO));
        // New heartbeats would make the compare-and-set of a writer fail.
        let is_fresh = writes || age < self.settings.keep_alive_interval;
        if !is_fresh || !matches!(self.torchrun.value, Value::Current(_)) {
            self.write_form(now);
        }
    }

    fn write_form(&mut self, now: Now) {
        let value = codec::to_value(&self.state(now.wall));
        let key = keys::state(&self.id);
        self.effects.push(Effect::store(key, value.clone()));
        self.torchrun.value = Value::Current(value);
        self.torchrun.written = Some(now.mono);
    }

    /// `true` if a coordinator has written torchrun's key.
    pub(in crate::coordinator) fn has_written_form(&self) -> bool {
        self.torchrun.written.is_some()
    }

    /// Returns the value under torchrun's key, if a coordinator has written it.
    pub(in crate::coordinator) fn written_form(&self) -> Option<&[u8]> {
        match &self.torchrun.value {
            Value::Current(value) if self.has_written_form() => Some(value),
            _ => None,
        }
    }

    /// Writes an outdated state after the last native agent has left.
    pub(in crate::coordinator) fn flush(&mut self, now: Now) {
        if let Value::Outdated = self.torchrun.value {
            self.write_form(now);
        }
    }

    /// Handles a key that an agent of torchrun may have changed.
    pub(in crate::coordinator) fn stored(&mut self, now: Now, value: Option<&[u8]>) {
        let known = match &self.torchrun.value {
            Value::Current(known) => Some(&known[..]),
            Value::Unused | Value::Outdated => None,
        };
        if value == known {
            return;
        }
        if self.is_recovering() {
            // The coordinator decides nothing before it knows the last round.
            return self.torchrun.outdate();
        }
        match (value, value.map(codec::from_value)) {
            (Some(value), Some(Ok(Some(state)))) => {
                self.torchrun.value = Value::Current(value.to_vec());
                self.take_over(now, state);
            }
            // The value was removed, reset or is not a state. The next read replaces it.
            _ => self.torchrun.outdate(),
        }
    }

    /// Continues from a state that an agent of torchrun has written.
    fn take_over(&mut self, now: Now, state: RendezvousState) {
        let heartbeats = &mut self.torchrun.heartbeats;
        state.see_heartbeats(heartbeats, now.mono);
        heartbeats.retain(|node, _| !self.agents.contains_key(node));
        let (number, is_formed, is_closed) = (state.round, state.complete, state.closed);
        let (deadline, last_call) = (state.deadline, last_call_end(now, &state));
        let old = self.take_nodes(state);
        if self.is_closed() {
            return;
        }
        if is_closed {
            return self.close();
        }
        self.see_changes(&old);
        let was_held = matches!(self.round, Round::Held(_));
        let holds = self.round.number() == number && self.round.is_formed() && is_formed;
        let homeless = self.drop_members(holds, was_held);
        if self.round.number() != number || (self.round.is_formed() && !is_formed) {
            self.begin_round(now, number);
            // A node that has already joined is no longer expected.
            let participants = &self.nodes.participants;
            if let Round::Forming(forming) = &mut self.round {
                forming
                    .awaited
                    .retain(|node| !participants.contains_key(node));
            }
        }
        if let Round::Forming(forming) = &mut self.round
            && forming.last_call.map(|last_call| last_call.deadline) != deadline
        {
            forming.last_call = last_call;
        }
        if is_formed && self.round.forming().is_some() {
            self.complete(now);
        }
        for node in homeless {
            self.admit(now, &node);
        }
        self.advance(now);
    }

    /// Handles nodes that have joined or left in a state that torchrun has written.
    fn see_changes(&mut self, old: &Nodes) {
        let nodes = &self.nodes;
        let is_ours = |node: &NodeDesc| self.agents.contains_key(node);
        let mut came = nodes.waiting.difference(&old.waiting);
        let came = came.find(|node| !is_ours(node)).cloned();
        // A native agent with a closed connection may reattach, unless its launcher has removed
        // it from the state.
        let mut left = old.participants.keys().filter(|node| {
            let is_out = !nodes.participants.contains_key(*node);
            is_out && (self.began.is_some() || !is_ours(node))
        });
        let left = left.next();
        let reason = match (left, came) {
            (Some(node), _) if is_ours(node) => {
                Some(format!("node {node} is lost: it was removed from the run"))
            }
            (Some(node), _) => Some(format!("node {node} has left the round")),
            (None, Some(node)) => Some(format!("node {node} waits to join")),
            (None, None) => None,
        };
        let has_left = left.is_some();
        if let Some(formed) = self.round.formed_mut() {
            // An agent of torchrun has left, or the launcher of a native agent has removed the
            // agent after its exit.
            self.record.torn |= has_left;
            formed.awaited.retain(|node| !nodes.waiting.contains(node));
        } else if let Round::Forming(forming) = &mut self.round {
            let is_here = |node: &NodeDesc| {
                nodes.participants.contains_key(node) || nodes.waiting.contains(node)
            };
            forming.awaited.retain(|node| !is_here(node));
        }
        if let Some(reason) = reason {
            self.break_round(&reason);
        }
    }

    /// Notifies members that an agent of torchrun treats as lost.
    ///
    /// Returns the agents with a pending join that are in no list. `was_held` is `true` if the
    /// members do not know yet that the round is over.
    fn drop_members(&mut self, holds: bool, was_held: bool) -> Vec<NodeDesc> {
        let round = self.round.announced().unwrap_or(self.round.number());
        let reason =
            "the other nodes treat this node as lost; check that the clocks of all hosts agree";
        let event = self.membership(round, reason);
        let formed = self.round.formed();
        let succeeded = formed.map_or_else(BTreeSet::new, |it| it.succeeded.clone());
        let mut homeless = Vec::new();
        for (node, agent) in &mut self.agents {
            match agent.phase {
                Phase::Joining { .. } if self.nodes.has(node) => {}
                Phase::Joining { .. } => homeless.push(node.clone()),
                Phase::Member { .. } if holds && self.nodes.participants.contains_key(node) => {}
                Phase::Member { .. } => {
                    agent.phase = Phase::Dropped;
                    // A node whose workers have succeeded waits for an answer.
                    if was_held || succeeded.contains(node) {
                        self.effects.push(Effect::notify(node, event.clone()));
                    }
                }
                Phase::Dropped => {}
            }
        }
        homeless
    }

    /// Removes agents of torchrun whose heartbeats have stopped.
    pub(super) fn expire_torchrun(&mut self, now: Now, late: bool) {
        let lost_after = self.settings.lost_after();
        let heartbeats = self.torchrun.heartbeats.iter();
        let silent = heartbeats.filter(|(_, (_, seen))| *seen + lost_after <= now.mono);
        let silent: Vec<NodeDesc> = silent.map(|(node, _)| node.clone()).collect();
        for node in silent {
            if late {
                if let Some((_, seen)) = self.torchrun.heartbeats.get_mut(&node) {
                    *seen = now.mono;
                }
                continue;
            }
            let how = format!(
                "is lost: it sent no heartbeat for {:.1} s",
                lost_after.as_secs_f64()
            );
            self.depart(now, &node, &how);
        }
    }
}

/// Returns the end of a last call that an agent of torchrun has begun.
fn last_call_end(now: Now, state: &RendezvousState) -> Option<LastCallEnd> {
    let deadline = state.deadline?;
    let left = deadline
        .unix_micros()
        .saturating_sub(now.wall.unix_micros());
    let left = Duration::from_micros(u64::try_from(left).unwrap_or(0));
    Some(LastCallEnd {
        at: now.mono + left,
        deadline,
    })
}
