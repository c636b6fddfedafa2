//! When a round is complete, and what follows.
//!
//! A round that forms is complete
//!
//! * with max nodes; or
//! * with at least min, when everybody who is known to want in has joined and those were enough from
//!   the beginning: after a change, there is nobody else to wait for; or
//! * with at least min, when the last call is over.

use std::time::Duration;

use super::{Effect, Phase, Run};
use crate::coordinator::keys::{assigned_ranks, role_info};
use crate::coordinator::wire::{Event, Refusal};
use crate::last_call::LastCall;
use crate::mutant::{Mutant, is_broken};
use crate::{NodeDesc, ranks};
use rdzv_core::machine::Outbox;
use rdzv_core::rank::{Assignment, GroupRank, RoleInfo, assign};
use rdzv_core::time::{Mono, Now};

/// How long an agent of torchrun may be in no list after it has left a round. It enters the next one with
/// its next write.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(2);

/// How many nodes a refusal names.
const NAMED: usize = 256;

impl Run {
    /// Brings the state to rest after something has changed in it.
    pub(super) fn advance(&mut self, now: Now, out: &mut Outbox<Effect>) {
        if self.state.closed || self.recovery.is_some() {
            return;
        }
        if !self.state.complete {
            self.promote(now);
            if self.is_ready(now) {
                self.complete();
            } else {
                self.announce_last_call(now, out);
            }
        }
        if self.state.complete && self.announced != Some(self.state.round) {
            self.announce(now, out);
        }
        if self.state.complete {
            self.step_in(now, out);
        }
        self.tell_soon(now);
    }

    /// Surplus nodes wait for the next round once the complete one is not full any more. Agents of
    /// torchrun that are left in it do not join again for a node that is lost, only for one that waits.
    fn step_in(&mut self, now: Now, out: &mut Outbox<Effect>) {
        if self.state.participants.len() >= self.settings.max_nodes as usize {
            return;
        }
        let joining = |node: &&NodeDesc| {
            let agent = self.agents.get(*node);
            agent.is_some_and(|agent| agent.phase == Phase::Joining)
        };
        let surplus = self.state.redundancy_list.iter().filter(joining);
        for node in surplus.cloned().collect::<Vec<_>>() {
            self.state.redundancy_list.remove(&node);
            self.restart_join_timer(now, &node);
            self.announce_change(&format!("node {node} waits to join"), out);
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
        self.last_call_announced = false;
        self.state.deadline = None;
    }

    /// Lets in native agents that wait, as far as there is room: former participants first.
    fn promote(&mut self, now: Now) {
        let waits = |run: &Self, node: &NodeDesc| {
            let agent = run.agents.get(node);
            agent.is_some_and(|agent| agent.phase == Phase::Joining)
        };
        if !self.state.wait_list.is_empty() {
            let waiting: Vec<NodeDesc> = self.state.wait_list.iter().cloned().collect();
            let (former, new): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .filter(|node| waits(self, node))
                .partition(|node| self.former.contains(node));
            for node in former.iter().chain(&new) {
                self.admit(now, node);
            }
        }
        while self.state.participants.len() + self.awaited.len() < self.settings.max_nodes as usize
        {
            let mut surplus = self.state.redundancy_list.iter();
            let Some(node) = surplus.find(|node| waits(self, node)).cloned() else {
                return;
            };
            self.restart_join_timer(now, &node);
            self.admit(now, &node);
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
        let is_full = count >= self.settings.max_nodes as usize;
        let is_enough = count >= self.settings.min_nodes as usize
            && (everybody || self.last_call_ends().is_some_and(|end| end <= now.mono));
        (is_full || is_enough) && !self.waits_for_older(now, is_full)
    }

    /// Whether members of an older round may still be heard of, of which this coordinator knows nothing. Unless there was
    /// another coordinator, there cannot be an older round beside one of all nodes, nor where more than half of them
    /// are needed.
    fn waits_for_older(&self, now: Now, is_full: bool) -> bool {
        self.may_have_older(is_full) && self.not_before.is_some_and(|at| now.mono < at)
    }

    fn may_have_older(&self, is_full: bool) -> bool {
        let (min, max) = (self.settings.min_nodes, self.settings.max_nodes);
        let could_be = u64::from(min) * 2 <= u64::from(max) && !is_full;
        could_be || self.had_coordinator
    }

    /// The last call goes on for those who are on their way from the round before, however short it
    /// is: agents of torchrun need a moment to see that a round has begun, and left out, they would have
    /// everybody start over.
    fn last_call_ends(&self) -> Option<Mono> {
        let end = self.last_call?;
        let older = self.not_before.filter(|_| self.may_have_older(false));
        let end = older.map_or(end, |at| end.max(at));
        let nobody = self.awaited.is_empty() && self.state.wait_list.is_empty();
        let until = self.awaited_until.filter(|_| !nobody);
        Some(until.map_or(end, |until| end.max(until)))
    }

    fn announce_last_call(&mut self, now: Now, out: &mut Outbox<Effect>) {
        let (Some(end), false) = (self.last_call, self.last_call_announced) else {
            return;
        };
        let nodes = self.state.participants.len() as u32;
        let call = LastCall {
            nodes,
            room: self.settings.max_nodes.saturating_sub(nodes),
            ends_in: end.since(now.mono),
        };
        if call.is_worth_announcing() {
            self.last_call_announced = true;
            out.push(Effect::LastCall(call));
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
    fn announce(&mut self, now: Now, out: &mut Outbox<Effect>) {
        self.announced = Some(self.state.round);
        self.change_announced = false;
        self.silent.clear();
        // What people have said is about the rounds before.
        self.recovers = false;
        if !is_broken(Mutant::NoteAfterFormed) {
            self.note_round(out);
        }
        self.former = self.state.participants.keys().cloned().collect();
        self.awaited = self.former.clone();
        let programs = self.former.iter().map(|node| {
            let agent = self.agents.get(node)?;
            agent.program.clone()
        });
        self.round_runs = programs.collect::<Option<_>>().unwrap_or_default();
        let infos = self.infos();
        let assignments = infos.as_ref().map(|infos| assign(infos));
        if let (Some(infos), Some(assignments)) = (&infos, &assignments) {
            self.record(infos, assignments, out);
        }
        let world_size = self.state.participants.len() as u32;
        for (node, rank) in &self.state.participants {
            let Some(agent) = self.agents.get_mut(node) else {
                continue;
            };
            agent.phase = Phase::Member;
            let assignment = assignments.as_ref();
            let event = Event::Formed {
                round: self.state.round,
                rank: *rank,
                world_size,
                assignment: assignment.and_then(|all| all.get(*rank as usize).copied()),
            };
            out.push(Effect::Notify(node.clone(), event));
        }
        if is_broken(Mutant::NoteAfterFormed) {
            self.note_round(out);
        }
        for (node, agent) in &mut self.agents {
            if agent.phase == Phase::Member
                && let Some(at) = agent.join_at.take()
            {
                self.join_timers.remove(&(at, node.clone()));
            }
        }
        self.seek_master(now);
        // Whoever was left out waits in the list that suits a complete round. Agents of torchrun would
        // stay in the wait list of a full round, and have everybody restart for them for ever.
        let surplus = self.state.participants.len() >= self.settings.max_nodes as usize;
        let waiting: Vec<NodeDesc> = self.state.wait_list.iter().cloned().collect();
        for node in waiting {
            if surplus {
                self.state.wait_list.remove(&node);
                self.state.redundancy_list.insert(node);
                self.dirty = true;
            } else {
                self.announce_change(&format!("node {node} waits to join"), out);
            }
        }
    }

    /// What all nodes start, in the order of their ranks, if all have said so.
    pub(super) fn infos(&self) -> Option<Vec<RoleInfo>> {
        let infos = self.state.participants.iter().map(|(node, rank)| {
            let agent = self.agents.get(node)?;
            (agent.local_world_size > 0).then(|| RoleInfo {
                role: agent.role.clone(),
                rank: GroupRank(*rank),
                local_world_size: agent.local_world_size,
            })
        });
        let mut infos = infos.collect::<Option<Vec<_>>>()?;
        infos.sort_by_key(|info| info.rank);
        Some(infos)
    }

    /// When the run wants to be called.
    pub(in crate::coordinator) fn deadline(&self) -> Option<Mono> {
        let timers = self.join_timers.first().map(|(at, _)| *at);
        let lost_after = self.settings.lost_after();
        let torchrun = self.torchrun.values().map(|(_, seen)| *seen + lost_after);
        [
            timers,
            torchrun.min(),
            self.last_call_ends(),
            self.awaited_until,
            self.masters.until,
            self.tell_at,
            self.recovery.as_ref().map(|recovery| recovery.at),
            self.not_before,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed. If this process has been held up (`late`), so have the heartbeats that wait
    /// to be read.
    pub(in crate::coordinator) fn tick(&mut self, now: Now, late: bool, out: &mut Outbox<Effect>) {
        while let Some((at, _)) = self.join_timers.first()
            && *at <= now.mono
            && let Some((_, node)) = self.join_timers.pop_first()
        {
            self.expire_join(now, &node, out);
        }
        self.expire_torchrun(now, late, out);
        if self.awaited_until.is_some_and(|at| at <= now.mono) {
            self.awaited_until = None;
            self.awaited.clear();
        }
        self.master_is_late(now, out);
        if self.not_before.is_some_and(|at| at <= now.mono) {
            self.not_before = None;
        }
        self.end_recovery_if_due(now, out);
        self.advance(now, out);
        self.tell_if_due(now, out);
        if self.last_call_ends().is_some_and(|end| end <= now.mono) {
            // Too few are left for it to have had an effect.
            self.last_call = None;
        }
    }

    fn expire_join(&mut self, now: Now, node: &NodeDesc, out: &mut Outbox<Effect>) {
        if let Some(agent) = self.agents.get_mut(node) {
            agent.join_at = None;
        }
        if self.state.redundancy_list.contains(node) {
            // A surplus node waits for as long as the job runs.
            return self.restart_join_timer(now, node);
        }
        let Some(agent) = self.agents.get(node) else {
            return;
        };
        let elapsed = now.mono.since(agent.joined_at);
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
        out.push(Effect::Notify(node.clone(), Event::Refused(refusal)));
        self.leave(now, node, out);
    }

    /// Writes the ranks of a complete round, given in the order of the nodes, under torchrun's keys.
    ///
    /// Native agents get their ranks by events and need no keys. But people and programs look into
    /// the store to see who takes part. Only the keys of the latest such round are kept: nobody
    /// waits for them, and rounds may be many.
    fn record(&mut self, infos: &[RoleInfo], assignments: &[Assignment], out: &mut Outbox<Effect>) {
        if let Some((round, nodes)) = self.recorded.take() {
            for rank in 0..nodes {
                out.push(Effect::Remove(role_info(&self.id, round, rank)));
                out.push(Effect::Remove(assigned_ranks(&self.id, round, rank)));
            }
        }
        let round = self.state.round;
        for (info, assignment) in infos.iter().zip(assignments) {
            let rank = info.rank.0;
            for (key, value) in [
                (role_info(&self.id, round, rank), json(info)),
                (assigned_ranks(&self.id, round, rank), json(assignment)),
            ] {
                out.push(Effect::Store { key, value });
            }
        }
        self.recorded = Some((round, infos.len() as u32));
    }
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and texts are always JSON")
}
