//! A round that forms.
//!
//! The round is complete in one of these cases:
//!
//! * `max_nodes` nodes have joined.
//! * At least `min_nodes` nodes have joined, every expected node is among them, and the expected
//!   nodes were enough from the beginning. After a change, there is no other node to wait for.
//! * At least `min_nodes` nodes have joined, and the last call is over.
//!
//! In each case, the round may have to wait while members of an older round, which this coordinator
//! does not know, may reattach. An agent of torchrun can complete a round too (`torchrun.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::leases::AgentLease;
use super::round::{Formed, Forming, LastCallEnd, Round};
use super::{Effect, Output, Phase, Run};
use crate::coordinator::keys::{assigned_ranks, role_info};
use crate::coordinator::wire::{AgentRefusal, Event, MOST_REPLACED};
use crate::last_call::LastCall;
use crate::ranks::Seat;
use crate::{NodeDesc, Rule, ranks};
use rdzv_core::rank::{Assignment, GroupRank, RoleInfo, assign};
use rdzv_core::reminder;
use rdzv_core::time::{Mono, Now, earliest};

/// Time for which an agent of torchrun may be in no list between two rounds.
///
/// The agent enters the next round with its next write.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(2);

/// Maximum number of nodes that a refusal lists.
const NAMED: usize = 256;

/// Waiting time after which agents receive reports of the joined nodes.
///
/// Most rounds are complete earlier.
const REPORT_AFTER: Duration = reminder::FIRST;

/// Time within which several arrivals are combined into one report.
///
/// Batching keeps the cost of many arrivals low.
const REPORT_WITHIN: Duration = Duration::from_millis(250);

impl Run {
    /// Executes the transitions that are due after a change.
    pub(super) fn advance(&mut self, now: Now) {
        if let Round::Forming(_) = self.round {
            self.promote(now);
            if self.is_ready(now) {
                self.assign_ranks();
                self.complete(now);
            } else {
                self.log_last_call(now);
            }
        }
        match &self.round {
            Round::Forming(_) => self.report_soon(now),
            Round::Held(_) | Round::Over(_) => self.step_in(now),
            Round::Silent(..) | Round::Recovering(..) | Round::Closed { .. } => {}
        }
    }

    /// Begins the next round after the last participant has left.
    ///
    /// The waiting nodes join it.
    pub(super) fn begin_next(&mut self, now: Now) {
        if let Some(formed) = self.round.formed() {
            self.begin_round(now, formed.next);
        }
    }

    pub(super) fn begin_round(&mut self, now: Now, number: u64) {
        let last = self.round.announced();
        let next = match &mut self.round {
            Round::Forming(forming) => std::mem::take(forming),
            other => {
                let over = other.take_formed().unwrap_or_default();
                self.remove_ranks(&over);
                Forming {
                    awaited: over.awaited,
                    had_spare: over.had_spare,
                    ..Forming::default()
                }
            }
        };
        // Native agents that may reattach are still participants, or are in the wait list.
        let coming = next.awaited.len() + self.nodes.waiting.len();
        self.round = Round::Forming(Forming {
            number,
            last,
            awaited_ends: (coming > 0).then(|| now.mono + BETWEEN_ROUNDS),
            is_enough: coming >= self.settings.min_nodes as usize,
            awaited: next.awaited,
            had_spare: next.had_spare,
            older_ends: next.older_ends,
            ..Forming::default()
        });
    }

    /// Returns the number of joined and expected nodes of the forming round.
    pub(super) fn taken(&self) -> usize {
        let awaited = self.round.forming().map_or(0, |it| it.awaited.len());
        self.nodes.participants.len() + awaited
    }

    /// Admits waiting native agents while the round has room.
    ///
    /// Former participants come first, and spare nodes last.
    fn promote(&mut self, now: Now) {
        let waiting = self.nodes.waiting.iter().cloned();
        let joining = waiting.filter(|node| self.is_joining(node));
        let is_sorted = !self.origin.rules.has(Rule::FormerComeFirst);
        let is_former = |node: &NodeDesc| is_sorted || self.former.contains_key(node);
        let (former, new): (Vec<_>, Vec<_>) = joining.partition(is_former);
        for node in former.iter().chain(&new) {
            self.admit(now, node);
        }
        let steps_in = self.origin.rules.has(Rule::SparesStepIn);
        while steps_in && self.taken() < self.settings.max_nodes as usize {
            let mut surplus = self.nodes.surplus.iter();
            let Some(node) = surplus.find(|node| self.is_joining(node)).cloned() else {
                return;
            };
            self.call_spare(now, &node);
            self.admit(now, &node);
        }
    }

    /// Restarts the join of a spare node that is to join the next round.
    ///
    /// A replacement may join before the loss of the node that it replaces is known. So a node is a
    /// spare only if it has waited for longer.
    pub(super) fn call_spare(&mut self, now: Now, node: &NodeDesc) {
        let lost_after = self.settings.lost_after().max(self.fence());
        if let Some(Phase::Joining { since }) = self.phase(node)
            && since + lost_after <= now.mono
        {
            self.round.expect_spare();
        }
        self.restart_join(now, node);
    }

    /// Begins the last call if enough nodes have joined.
    pub(super) fn call_last(&mut self, now: Now) {
        let is_enough = self.nodes.participants.len() >= self.settings.min_nodes as usize;
        let timeout = self.settings.last_call_timeout;
        if let Round::Forming(forming) = &mut self.round
            && forming.last_call.is_none()
            && is_enough
        {
            forming.last_call = Some(LastCallEnd {
                at: now.mono + timeout,
                deadline: now.wall + timeout,
            });
        }
    }

    /// Cancels the last call if too few nodes are left.
    pub(super) fn end_last_call_of_few(&mut self) {
        let is_few = self.nodes.participants.len() < self.settings.min_nodes as usize;
        if let Round::Forming(forming) = &mut self.round
            && is_few
        {
            forming.last_call = None;
        }
    }

    fn is_ready(&self, now: Now) -> bool {
        let Some(forming) = self.round.forming() else {
            return false;
        };
        let count = self.nodes.participants.len();
        let is_everybody =
            forming.is_enough && forming.awaited.is_empty() && self.nodes.waiting.is_empty();
        let is_full = count >= self.settings.max_nodes as usize;
        let is_called = self.last_call_ends().is_some_and(|end| end <= now.mono);
        let is_enough = count >= self.settings.min_nodes as usize && (is_everybody || is_called);
        let waits_for_older = self.may_have_older(forming, is_full)
            && forming.older_ends.is_some_and(|at| now.mono < at);
        (is_full || is_enough) && !waits_for_older
    }

    /// `true` if members of an unknown older round may reattach.
    ///
    /// Without an earlier coordinator, an older round is impossible in two cases: this round is
    /// full, or a round needs more than half of `max_nodes`.
    fn may_have_older(&self, forming: &Forming, is_full: bool) -> bool {
        // Without an earlier coordinator, numbers begin at 0.
        let had_others = forming.last.is_none() && forming.number > 0;
        let (min, max) = (self.settings.min_nodes, self.settings.max_nodes);
        had_others || u64::from(min) * 2 <= u64::from(max) && !is_full
    }

    /// Returns the end of the last call.
    ///
    /// Even a short last call waits for nodes from the previous round. `torchrun` agents need a
    /// moment to notice a new round. If the round left them out, they would make all nodes restart.
    pub(super) fn last_call_ends(&self) -> Option<Mono> {
        let forming = self.round.forming()?;
        let end = forming.last_call?.at;
        let may_have_older = self.may_have_older(forming, false);
        let older = forming.older_ends.filter(|_| may_have_older);
        let end = older.map_or(end, |at| end.max(at));
        let is_awaited = !forming.awaited.is_empty() || !self.nodes.waiting.is_empty();
        let wait_ends = forming.awaited_ends.filter(|_| is_awaited);
        Some(wait_ends.map_or(end, |at| end.max(at)))
    }

    fn log_last_call(&mut self, now: Now) {
        let nodes = self.nodes.participants.len() as u32;
        let room = self.settings.max_nodes.saturating_sub(nodes);
        let Round::Forming(forming) = &mut self.round else {
            return;
        };
        let (Some(end), false) = (forming.last_call, forming.is_logged) else {
            return;
        };
        let ends_in = end.at.since(now.mono);
        let call = LastCall {
            nodes,
            room,
            ends_in,
        };
        if call.is_worth_announcing() {
            forming.is_logged = true;
            let run = self.id.clone();
            self.effects
                .push(Effect::Output(Output::LastCall { run, call }));
        }
    }

    /// Assigns the ranks of a round that is ready.
    ///
    /// Agents of torchrun sort them, so a round with such an agent is sorted. A native agent can
    /// request the same.
    fn assign_ranks(&mut self) {
        let sorts = |node| {
            let agent = self.agents.get(node);
            agent.is_none_or(|agent| agent.join.settings.sorts_ranks)
        };
        let is_sorted = self.nodes.participants.keys().any(sorts);
        if is_sorted || !self.origin.rules.has(Rule::RanksStick) {
            return ranks::assign(&mut self.nodes.participants);
        }
        let (seats, last) = (self.seats(), (&self.former, self.former_size));
        ranks::keep(&mut self.nodes.participants, &seats, last);
    }

    /// Returns the ranks of the participants, with their agents.
    pub(super) fn seats(&self) -> BTreeMap<NodeDesc, Seat> {
        let participants = self.nodes.participants.iter();
        let seats = participants.map(|(node, rank)| (node.clone(), self.seat(node, *rank)));
        seats.collect()
    }

    pub(super) fn seat(&self, node: &NodeDesc, rank: u32) -> Seat {
        let agent = self.agents.get(node);
        agent.map_or_else(Seat::default, |agent| agent.join.seat(rank))
    }

    /// Returns the ranks of workers whose node was not in the last round.
    fn replaced(&self, infos: &[RoleInfo], assignments: &[Assignment]) -> Vec<u32> {
        let participants = self.nodes.participants.iter();
        let new = participants.filter(|(node, _)| !self.former.contains_key(*node));
        let mut new: Vec<_> = new.map(|(_, rank)| *rank as usize).collect();
        new.sort_unstable();
        let workers = new.into_iter().flat_map(|rank| {
            let first = assignments[rank].base_rank.0;
            first..first + infos[rank].local_world_size
        });
        let is_first = self.former_size == 0;
        let ranks: Vec<u32> = workers.take(MOST_REPLACED + 1).collect();
        Some(ranks)
            .filter(|it| !is_first && it.len() <= MOST_REPLACED)
            .unwrap_or_default()
    }

    /// Completes the round, whose nodes already have ranks.
    ///
    /// Notifies the native participants.
    pub(super) fn complete(&mut self, now: Now) {
        let number = self.round.number();
        let ranked = self.infos().map(|infos| (assign(&infos), infos));
        let replaced = ranked
            .as_ref()
            .map(|(ranks, infos)| self.replaced(infos, ranks));
        let settings = &self.settings;
        let is_fixed = settings.min_nodes == settings.max_nodes;
        let is_new = |node| !self.former.contains_key(node);
        let is_helped = self.former_size > 0 && self.nodes.participants.keys().any(is_new);
        let has_others = !self.nodes.waiting.is_empty() || !self.nodes.surplus.is_empty();
        let had_spare = self.round.forming().is_some_and(|it| it.had_spare);
        if is_fixed && is_helped && had_spare && !has_others {
            let (run, round) = (self.id.clone(), number);
            self.effects
                .push(Effect::Output(Output::LastSpare { run, round }));
        }
        (self.former, self.former_size) = (self.seats(), self.nodes.participants.len() as u32);
        let nodes = self.nodes.participants.keys().cloned().collect();
        self.torchrun.outdate();
        self.round = Round::Held(Formed {
            is_ours: true,
            replaced: replaced.unwrap_or_default(),
            programs: self.programs_of(&nodes),
            awaited: nodes,
            ..Formed::new(number)
        });
        if self.origin.rules.has(Rule::RecordsBeforeNotice) {
            self.record_round();
        }
        if let Some((assignments, infos)) = &ranked {
            self.store_ranks(infos, assignments);
        }
        let assignments = ranked.map(|(assignments, _)| assignments);
        let lease = if self.record.lease.is_zero() {
            AgentLease::None
        } else {
            AgentLease::Granted
        };
        for (node, rank) in &self.nodes.participants {
            let Some(agent) = self.agents.get_mut(node) else {
                continue;
            };
            agent.phase = Phase::Member { lease };
            self.join_timers.remove(node);
            let event = self.formed_event(*rank, assignments.as_deref());
            self.effects.push(Effect::notify(node, event));
        }
        if !self.origin.rules.has(Rule::RecordsBeforeNotice) {
            self.record_round();
        }
        self.seek_master(now);
        // Remaining nodes of a full round become spares. Agents of torchrun would stay in its wait
        // list, and make all nodes restart again and again.
        if self.nodes.participants.len() >= self.settings.max_nodes as usize {
            self.nodes.surplus.append(&mut self.nodes.waiting);
        } else {
            for node in self.nodes.waiting.clone() {
                self.break_round(&format!("node {node} waits to join"));
            }
        }
    }

    /// Returns the event for the participant with this rank.
    pub(super) fn formed_event(&self, rank: u32, assignments: Option<&[Assignment]>) -> Event {
        Event::Formed {
            round: self.round.number(),
            rank,
            world_size: self.nodes.participants.len() as u32,
            assignment: assignments.and_then(|all| all.get(rank as usize).copied()),
            replaced: self
                .round
                .formed()
                .map_or_else(Vec::new, |it| it.replaced.clone()),
        }
    }

    /// Returns the roles of all nodes in the order of their ranks.
    ///
    /// `None` unless all nodes are native, and have sent their numbers of workers.
    pub(super) fn infos(&self) -> Option<Vec<RoleInfo>> {
        let infos = self.nodes.participants.iter().map(|(node, rank)| {
            let join = &self.agents.get(node)?.join;
            (join.local_world_size > 0).then(|| RoleInfo {
                role: join.role.clone(),
                rank: GroupRank(*rank),
                local_world_size: join.local_world_size,
            })
        });
        let mut infos = infos.collect::<Option<Vec<_>>>()?;
        infos.sort_by_key(|info| info.rank);
        Some(infos)
    }

    /// Writes the ranks of a complete round under torchrun's keys.
    ///
    /// Native agents receive their ranks in events and need no keys, but users and programs read
    /// the store to see the participants. The coordinator removes the keys when the next round
    /// begins, because no agent waits for them, and there may be many rounds.
    fn store_ranks(&mut self, infos: &[RoleInfo], assignments: &[Assignment]) {
        let round = self.round.number();
        if let Some(formed) = self.round.formed_mut() {
            formed.stored_ranks = infos.len() as u32;
        }
        for (info, assignment) in infos.iter().zip(assignments) {
            let rank = info.rank.0;
            let key = role_info(&self.id, round, rank);
            self.effects.push(Effect::store(key, json(info)));
            let key = assigned_ranks(&self.id, round, rank);
            self.effects.push(Effect::store(key, json(assignment)));
        }
    }

    fn remove_ranks(&mut self, over: &Formed) {
        let keys = |rank| [role_info, assigned_ranks].map(|key| key(&self.id, over.number, rank));
        for key in (0..over.stored_ranks).flat_map(keys) {
            self.effects.push(Effect::Output(Output::Remove(key)));
        }
    }

    /// Schedules a report to waiting agents if the number of nodes has changed.
    fn report_soon(&mut self, now: Now) {
        let count = self.nodes.participants.len();
        if let Round::Forming(forming) = &mut self.round
            && forming.reported != count
        {
            forming.report_at.get_or_insert(now.mono + REPORT_WITHIN);
        }
    }

    /// Reports the joined nodes to agents that have waited for long, if it is due.
    fn report_if_due(&mut self, now: Now) {
        let count = self.nodes.participants.len();
        let Round::Forming(forming) = &mut self.round else {
            return;
        };
        if forming.report_at.is_none_or(|at| at > now.mono) {
            return;
        }
        (forming.reported, forming.report_at) = (count, None);
        for (node, agent) in &self.agents {
            if let Phase::Joining { since } = agent.phase
                && now.mono.since(since) >= REPORT_AFTER
            {
                let arrived = self.arrived(node);
                self.effects
                    .push(Effect::notify(node, Event::Alive(arrived)));
            }
        }
    }

    pub(super) fn forming_deadline(&self) -> Option<Mono> {
        let forming = self.round.forming()?;
        earliest([
            self.last_call_ends(),
            forming.awaited_ends,
            forming.report_at,
            forming.older_ends,
        ])
    }

    /// Ends the waits that are over.
    pub(super) fn end_waits(&mut self, now: Now) {
        if let Round::Recovering(_, recovery) = &mut self.round {
            recovery.older_ends = recovery.older_ends.filter(|at| *at > now.mono);
        }
        if let Round::Forming(forming) = &mut self.round {
            if forming.awaited_ends.is_some_and(|at| at <= now.mono) {
                forming.awaited_ends = None;
                forming.awaited.clear();
            }
            forming.older_ends = forming.older_ends.filter(|at| *at > now.mono);
        }
    }

    /// Reports the joined nodes, and ends a last call that had no effect.
    pub(super) fn report(&mut self, now: Now) {
        self.report_if_due(now);
        if self.last_call_ends().is_some_and(|end| end <= now.mono)
            && let Round::Forming(forming) = &mut self.round
        {
            // The last call had no effect because too few nodes are left.
            forming.last_call = None;
        }
    }

    /// Handles the timeout of a join.
    pub(super) fn expire_join(&mut self, now: Now, node: &NodeDesc) {
        if self.nodes.surplus.contains(node) {
            // A spare node waits until the job ends.
            return self.set_join_timer(now, node);
        }
        let Some(Phase::Joining { since }) = self.phase(node) else {
            return;
        };
        let elapsed = now.mono.since(since);
        let nodes = &self.nodes;
        let here: Vec<&NodeDesc> = if self.round.is_formed() {
            nodes.waiting.iter().collect()
        } else {
            nodes.participants.keys().chain(&nodes.waiting).collect()
        };
        let mut joined: Vec<String> = here.iter().take(NAMED).map(ToString::to_string).collect();
        if here.len() > NAMED {
            joined.push(format!("{} more", here.len() - NAMED));
        }
        let refusal = AgentRefusal::JoinTimeout { elapsed, joined };
        self.effects
            .push(Effect::notify(node, Event::Refused(refusal)));
        self.leave(now, node);
    }
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and texts are always JSON")
}
