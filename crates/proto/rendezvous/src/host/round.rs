//! When a round is complete, and what follows.
//!
//! A round that forms is complete
//!
//! * with max nodes; or
//! * with at least min, when everybody who is known to want in has joined and those were enough from
//!   the beginning: after a change, there is nobody else to wait for; or
//! * with at least min, when the last call is over.

use std::time::Duration;

use super::Output;
use super::run::{Phase, Run, Timer};
use super::wire::{Event, Refusal};
use crate::last_call::LastCall;
use crate::{NodeDesc, ranks};
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Outbox;
use rdzv_core::rank::{GroupRank, RoleInfo, assign};
use rdzv_core::time::{Mono, Now};

/// How long a stock agent may be in no list after it has left a round. It enters the next one with
/// its next write.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(2);

/// How many nodes a refusal names.
const NAMED: usize = 256;

impl Run {
    /// Brings the state to rest after something has changed in it.
    pub(super) fn settle(&mut self, now: Now, out: &mut Outbox<Output>) {
        if self.state.closed {
            return;
        }
        if !self.state.complete {
            self.promote(now);
            if self.is_ready(now) {
                self.complete();
            } else {
                self.tell_of_last_call(now, out);
            }
        }
        if self.state.complete && self.announced != Some(self.state.round) {
            self.announce(now, out);
        }
        if self.state.complete {
            self.step_in(now, out);
        }
    }

    /// Surplus nodes wait for the next round once the complete one is not full any more. Stock
    /// agents that are left in it do not join again for a node that is lost, only for one that waits.
    fn step_in(&mut self, now: Now, out: &mut Outbox<Output>) {
        if self.state.participants.len() >= self.settings.max_nodes as usize {
            return;
        }
        let joining = |node: &&NodeDesc| {
            let native = self.natives.get(*node);
            native.is_some_and(|native| native.phase == Phase::Joining)
        };
        let surplus = self.state.redundancy_list.iter().filter(joining);
        for node in surplus.cloned().collect::<Vec<_>>() {
            self.state.redundancy_list.remove(&node);
            self.restart_join_timer(now, &node);
            self.tell(&format!("node {node} waits to join"), out);
            self.state.wait_list.insert(node);
            self.dirty = true;
        }
    }

    /// The next round forms.
    pub(super) fn begin_round(&mut self, now: Now) {
        // Native agents that may come back are still participants or wait already.
        let coming = self.awaited.len() + self.state.wait_list.len();
        self.enough = coming >= self.settings.min_nodes as usize;
        self.awaited_until = (coming > 0).then(|| now.mono + BETWEEN_ROUNDS);
        self.last_call = None;
        self.last_call_told = false;
        self.state.deadline = None;
    }

    /// Lets in native agents that wait, as far as there is room: former participants first.
    fn promote(&mut self, now: Now) {
        let waits = |run: &Self, node: &NodeDesc| {
            let native = run.natives.get(node);
            native.is_some_and(|native| native.phase == Phase::Joining)
        };
        if !self.state.wait_list.is_empty() {
            let waiting: Vec<NodeDesc> = self.state.wait_list.iter().cloned().collect();
            let (former, new): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .filter(|node| waits(self, node))
                .partition(|node| self.former.contains(node));
            for node in former.iter().chain(&new) {
                self.place(now, node);
            }
        }
        while self.state.participants.len() + self.awaited.len() < self.settings.max_nodes as usize
        {
            let mut surplus = self.state.redundancy_list.iter();
            let Some(node) = surplus.find(|node| waits(self, node)).cloned() else {
                return;
            };
            self.restart_join_timer(now, &node);
            self.place(now, &node);
        }
    }

    /// Sets the end of the last call if this is the time to.
    pub(super) fn call_last(&mut self, now: Now) {
        if self.last_call.is_none()
            && self.state.participants.len() >= self.settings.min_nodes as usize
        {
            let timeout = self.settings.last_call_timeout;
            self.last_call = Some(now.mono + timeout);
            self.state.deadline = Some(now.wall + timeout);
        }
    }

    fn is_ready(&self, now: Now) -> bool {
        let count = self.state.participants.len();
        let everybody = self.enough && self.awaited.is_empty() && self.state.wait_list.is_empty();
        count >= self.settings.max_nodes as usize
            || count >= self.settings.min_nodes as usize
                && (everybody || self.last_call_ends().is_some_and(|end| end <= now.mono))
    }

    /// The last call goes on for those who are on their way from the round before, however short it
    /// is: stock agents need a moment to see that a round has begun, and left out, they would have
    /// everybody start over.
    fn last_call_ends(&self) -> Option<Mono> {
        let end = self.last_call?;
        let nobody = self.awaited.is_empty() && self.state.wait_list.is_empty();
        let until = self.awaited_until.filter(|_| !nobody);
        Some(until.map_or(end, |until| end.max(until)))
    }

    fn tell_of_last_call(&mut self, now: Now, out: &mut Outbox<Output>) {
        let (Some(end), false) = (self.last_call, self.last_call_told) else {
            return;
        };
        let nodes = self.state.participants.len() as u32;
        let call = LastCall {
            nodes,
            room: self.settings.max_nodes.saturating_sub(nodes),
            ends_in: end.since(now.mono),
        };
        if call.is_worth_telling() {
            self.last_call_told = true;
            let run = self.id.clone();
            out.push(Output::LastCall { run, call });
        }
    }

    fn complete(&mut self) {
        self.state.complete = true;
        self.state.deadline = None;
        self.last_call = None;
        self.awaited_until = None;
        ranks::assign(&mut self.state.participants);
        self.dirty = true;
    }

    /// Tells the native participants of a complete round of their ranks.
    fn announce(&mut self, now: Now, out: &mut Outbox<Output>) {
        self.announced = Some(self.state.round);
        self.told = false;
        self.former = self.state.participants.keys().cloned().collect();
        self.awaited = self.former.clone();
        let infos = self.infos();
        let assignments = infos.as_ref().map(|infos| assign(infos));
        if let (Some(infos), Some(assignments)) = (&infos, &assignments) {
            self.record(infos, assignments, out);
        }
        let world_size = self.state.participants.len() as u32;
        for (node, rank) in &self.state.participants {
            let Some(native) = self.natives.get_mut(node) else {
                continue;
            };
            native.phase = Phase::Member;
            let assignment = assignments.as_ref();
            out.push(Output::Send(
                native.connection,
                Event::Formed {
                    round: self.state.round,
                    rank: *rank,
                    world_size,
                    assignment: assignment.and_then(|all| all.get(*rank as usize).copied()),
                },
            ));
        }
        let members: Vec<_> = self
            .natives
            .values()
            .filter(|native| native.phase == Phase::Member)
            .map(|native| native.connection)
            .collect();
        for connection in members {
            self.stop_join_timer(connection);
        }
        self.seek_master(now);
        // Whoever was left out waits in the list that suits a complete round. Stock agents would
        // stay in the wait list of a full round, and have everybody restart for them for ever.
        let surplus = self.state.participants.len() >= self.settings.max_nodes as usize;
        let waiting: Vec<NodeDesc> = self.state.wait_list.iter().cloned().collect();
        for node in waiting {
            if surplus {
                self.state.wait_list.remove(&node);
                self.state.redundancy_list.insert(node);
                self.dirty = true;
            } else {
                self.tell(&format!("node {node} waits to join"), out);
            }
        }
    }

    /// What all nodes start, in the order of their ranks, if all have said so.
    fn infos(&self) -> Option<Vec<RoleInfo>> {
        let infos = self.state.participants.iter().map(|(node, rank)| {
            self.natives.get(node).map(|native| RoleInfo {
                role: native.role.clone(),
                rank: GroupRank(*rank),
                local_world_size: native.local_world_size,
            })
        });
        let mut infos = infos.collect::<Option<Vec<_>>>()?;
        infos.sort_by_key(|info| info.rank);
        Some(infos)
    }

    /// When the run wants to be called.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let timers = self.timers.first().map(|(at, _, _)| *at);
        let lost_after = self.settings.lost_after();
        let stock = self.stock.values().map(|(_, seen)| *seen + lost_after);
        [
            timers,
            stock.min(),
            self.last_call_ends(),
            self.awaited_until,
            self.masters.until,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed; the run wanted to be called `at` some time.
    pub(super) fn tick(&mut self, now: Now, at: Mono, out: &mut Outbox<Output>) {
        // If this process has been held up, so have the heartbeats that wait to be read.
        let late = now.mono.since(at) > self.settings.keep_alive_interval;
        while let Some(&(at, connection, timer)) = self.timers.first()
            && at <= now.mono
        {
            self.timers.pop_first();
            match timer {
                Timer::Silence => self.silent(now, connection, late, out),
                Timer::Join => self.join_is_over(now, connection, out),
            }
        }
        self.drop_silent_stock(now, late, out);
        if self.awaited_until.is_some_and(|at| at <= now.mono) {
            self.awaited_until = None;
            self.awaited.clear();
        }
        self.master_is_late(now, out);
        self.settle(now, out);
        if self.last_call_ends().is_some_and(|end| end <= now.mono) {
            // Too few are left for it to have had an effect.
            self.last_call = None;
        }
    }

    fn silent(&mut self, now: Now, connection: ConnId, late: bool, out: &mut Outbox<Output>) {
        let lost_after = self.settings.lost_after();
        let Some(seat) = self.connections.get_mut(&connection) else {
            return;
        };
        let Some(native) = self.natives.get(&seat.node) else {
            return;
        };
        let until = native.heard + lost_after;
        if until > now.mono || late {
            let again = now.mono + self.settings.keep_alive_interval;
            seat.silence_at = if until > now.mono { until } else { again };
            self.timers
                .insert((seat.silence_at, connection, Timer::Silence));
            return;
        }
        let how = format!(
            "it has not been heard of for {:.1} s",
            now.mono.since(native.heard).as_secs_f64()
        );
        self.lost(now, connection, &how, out);
        out.push(Output::Close(
            connection,
            format!("its agent is lost: {how}"),
        ));
    }

    fn join_is_over(&mut self, now: Now, connection: ConnId, out: &mut Outbox<Output>) {
        let Some(seat) = self.connections.get_mut(&connection) else {
            return;
        };
        seat.join_at = None;
        let node = seat.node.clone();
        if self.state.redundancy_list.contains(&node) {
            // A surplus node waits for as long as the job runs.
            return self.restart_join_timer(now, &node);
        }
        let Some(native) = self.natives.get(&node) else {
            return;
        };
        let elapsed = now.mono.since(native.joined_at);
        let state = &self.state;
        let here = || match state.complete {
            true => state.wait_list.iter().collect::<Vec<_>>(),
            false => state.participants.keys().chain(&state.wait_list).collect(),
        };
        let here = here();
        let mut joined: Vec<String> = here.iter().take(NAMED).map(ToString::to_string).collect();
        if here.len() > NAMED {
            joined.push(format!("{} more", here.len() - NAMED));
        }
        let refusal = Refusal::JoinTimeout { elapsed, joined };
        out.push(Output::Send(connection, Event::Refused(refusal)));
        self.leave(now, connection, out);
    }

    fn restart_join_timer(&mut self, now: Now, node: &NodeDesc) {
        if let Some(native) = self.natives.get_mut(node) {
            native.joined_at = now.mono;
            let (connection, timeout) = (native.connection, native.join_timeout);
            self.seat(now, connection, node, timeout);
        }
    }
}
