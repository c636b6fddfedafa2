//! torchrun's form of the state, and what agents of torchrun write.
//!
//! Native agents keep no heartbeats in the state: whoever looks sees those that are connected as
//! just heard of. Agents of torchrun are held for lost when the heartbeat that they write has not changed
//! for long enough by the coordinator's clock, so that it does not matter what their clocks say.

use super::{Effect, Phase, Run};
use crate::coordinator::keys;
use crate::coordinator::wire::Event;
use crate::expected::is_listed;
use crate::{NodeDesc, RendezvousState, codec};
use rdzv_core::machine::Outbox;
use rdzv_core::time::Now;

impl Run {
    /// Value of torchrun's key before there was a native agent, and whether it was stored here.
    pub(in crate::coordinator) fn found(&mut self, now: Now, value: Option<&[u8]>, written: bool) {
        self.written = written;
        let Some(value) = value else {
            return;
        };
        // What cannot be read is replaced, as the first state is.
        if let Ok(Some(state)) = codec::from_value(value) {
            self.state = state;
            self.announced = self.state.complete.then_some(self.state.round);
            self.former = self.state.participants.keys().cloned().collect();
            self.awaited = match self.state.complete {
                true => self.former.clone(),
                false => Default::default(),
            };
            for (node, wall) in &self.state.last_heartbeats {
                self.torchrun.insert(node.clone(), (*wall, now.mono));
            }
            self.take_last_call(now);
        }
        self.form = Some(value.to_vec());
    }

    /// Whether agents of torchrun take part.
    pub(in crate::coordinator) fn has_torchrun(&self) -> bool {
        !self.torchrun.is_empty()
    }

    /// An agent of torchrun is about to look at the state, or to change it.
    pub(in crate::coordinator) fn touching(
        &mut self,
        now: Now,
        writes: bool,
        out: &mut Outbox<Effect>,
    ) {
        // A refreshed heartbeat makes a compare-and-set fail, so it is not for those who write.
        let stale =
            !writes && now.mono.since(self.refreshed_at) >= self.settings.keep_alive_interval;
        if self.dirty || self.form.is_none() || stale {
            self.write_form(now, out);
        }
    }

    fn write_form(&mut self, now: Now, out: &mut Outbox<Effect>) {
        let state = &mut self.state;
        for node in self.agents.keys() {
            if is_listed(state, node) {
                state.last_heartbeats.insert(node.clone(), now.wall);
            }
        }
        let value = codec::to_value(state);
        out.push(Effect::Store {
            key: keys::state(&self.id),
            value: value.clone(),
        });
        self.form = Some(value);
        self.refreshed_at = now.mono;
        self.dirty = false;
        self.written = true;
    }

    /// The value under torchrun's key, if it was stored here.
    pub(in crate::coordinator) fn written_form(&self) -> Option<&[u8]> {
        self.form.as_deref().filter(|_| self.written)
    }

    /// The last native agent is gone.
    pub(in crate::coordinator) fn flush(&mut self, now: Now, out: &mut Outbox<Effect>) {
        if self.dirty {
            self.write_form(now, out);
        }
    }

    /// An agent of torchrun may have written.
    pub(in crate::coordinator) fn stored(
        &mut self,
        now: Now,
        value: Option<&[u8]>,
        out: &mut Outbox<Effect>,
    ) {
        if value == self.form.as_deref() {
            return;
        }
        if self.recovery.is_some() {
            // Nobody decides anything before the last round is known.
            self.dirty = true;
            return;
        }
        match value.map(codec::from_value) {
            Some(Ok(Some(state))) => {
                self.form = value.map(<[u8]>::to_vec);
                self.take_over(now, state, out);
            }
            // Gone, reset or not a state: ours still is, and takes its place when somebody looks.
            _ => self.dirty = true,
        }
    }

    /// Goes on from a state that an agent of torchrun has written.
    fn take_over(&mut self, now: Now, state: RendezvousState, out: &mut Outbox<Effect>) {
        let old = std::mem::replace(&mut self.state, state);
        for (node, wall) in &self.state.last_heartbeats {
            let known = self.torchrun.get(node);
            if !self.agents.contains_key(node) && known.is_none_or(|(known, _)| known != wall) {
                self.torchrun.insert(node.clone(), (*wall, now.mono));
            }
        }
        let state = &self.state;
        self.torchrun
            .retain(|node, _| state.last_heartbeats.contains_key(node));
        if state.closed && !old.closed {
            return self.announce_closed(out);
        }
        if state.deadline != old.deadline {
            self.take_last_call(now);
        }
        self.note_torchrun_changes(&old, out);
        if self.state.round != old.round || (old.complete && !self.state.complete) {
            self.begin_round(now);
            // Nobody is awaited who is here already.
            let state = &self.state;
            self.awaited
                .retain(|node| !state.participants.contains_key(node));
        }
        self.restore_agents(now, out);
        self.advance(now, out);
    }

    fn note_torchrun_changes(&mut self, old: &RendezvousState, out: &mut Outbox<Effect>) {
        let state = &self.state;
        let native = |node: &&NodeDesc| self.agents.contains_key(*node);
        let mut came = state.wait_list.difference(&old.wait_list);
        let came = came.find(|node| !native(node)).cloned();
        // An agent of ours whose connection has closed may come back, unless its launcher takes it out.
        let mut left = old
            .participants
            .keys()
            .filter(|node| self.restartable || !native(node));
        let left = left.find(|node| !state.participants.contains_key(*node));
        let has_left = left.is_some();
        let reason = match (left, came) {
            (Some(node), _) if native(&node) => {
                Some(format!("node {node} is lost: it was taken out of the run"))
            }
            (Some(node), _) => Some(format!("node {node} has left the round")),
            (None, Some(node)) => Some(format!("node {node} waits to join")),
            (None, None) => None,
        };
        // One of ours was taken out by its launcher, which has seen its end.
        self.note.torn |= old.complete && has_left;
        for node in state.participants.keys().chain(&state.wait_list) {
            if !old.complete || state.wait_list.contains(node) {
                self.awaited.remove(node);
            }
        }
        if let Some(reason) = reason.filter(|_| old.complete) {
            self.announce_change(&reason, out);
        }
    }

    /// Native agents whose join goes on must be somewhere; those that an agent of torchrun holds for dead
    /// are told.
    fn restore_agents(&mut self, now: Now, out: &mut Outbox<Effect>) {
        let state = &self.state;
        let holds = state.complete && self.announced == Some(state.round);
        let mut homeless = Vec::new();
        for (node, agent) in &mut self.agents {
            let participates = state.participants.contains_key(node);
            match agent.phase {
                Phase::Joining => {
                    if !is_listed(state, node) {
                        homeless.push(node.clone());
                    }
                }
                Phase::Member if holds && participates => {}
                Phase::Member => {
                    agent.phase = Phase::Dropped;
                    if !self.change_announced {
                        out.push(Effect::Notify(
                            node.clone(),
                            Event::Membership {
                                round: self.announced.unwrap_or(state.round),
                                waiting: state.wait_list.len() as u32,
                                reason:
                                    "the others hold this node for lost; check that the clocks \
                                         of all hosts agree"
                                        .to_owned(),
                            },
                        ));
                    }
                }
                Phase::Dropped => {}
            }
        }
        for node in homeless {
            self.admit(now, &node);
        }
    }

    /// A last call that an agent of torchrun has set or taken back.
    fn take_last_call(&mut self, now: Now) {
        self.last_call = self.state.deadline.map(|deadline| {
            let left = deadline
                .unix_micros()
                .saturating_sub(now.wall.unix_micros());
            now.mono + std::time::Duration::from_micros(u64::try_from(left).unwrap_or(0))
        });
    }

    /// Agents of torchrun that have not been heard of are gone.
    pub(super) fn expire_torchrun(&mut self, now: Now, late: bool, out: &mut Outbox<Effect>) {
        let lost_after = self.settings.lost_after();
        let silent: Vec<NodeDesc> = self
            .torchrun
            .iter()
            .filter(|(_, (_, seen))| *seen + lost_after <= now.mono)
            .map(|(node, _)| node.clone())
            .collect();
        for node in silent {
            if late {
                if let Some((_, seen)) = self.torchrun.get_mut(&node) {
                    *seen = now.mono;
                }
                continue;
            }
            let how = format!(
                "is lost: its heartbeats have stopped for {:.1} s",
                lost_after.as_secs_f64()
            );
            self.depart(now, &node, &how, out);
        }
    }
}
