//! Agents that reattach over another connection, and successors of agents.

use super::leases::AgentLease;
use super::round::{Recovery, Round};
use super::{Agent, Effect, Phase, Run};
use crate::coordinator::wire::{Event, HeldRound, Join, Reattach};
use crate::ranks::Seat;
use crate::{FencePolicy, NodeDesc, Rule};
use rdzv_core::rank::assign;
use rdzv_core::time::Now;

impl Run {
    /// Handles an agent that has certainly ended, because `successor` replaces it.
    pub(in crate::coordinator) fn ended(&mut self, now: Now, instance: u64, successor: &NodeDesc) {
        if !self.origin.rules.has(Rule::SuccessorsProve) {
            return;
        }
        self.speaks(instance);
        let mut agents = self.agents.iter();
        let known = agents.find(|(node, agent)| {
            agent.join.instance == instance && instance != 0 && *node != successor
        });
        let known = known.map(|(node, _)| node.clone());
        let missing = self.missing_rank(instance).filter(|_| instance != 0);
        // The successor is the same node for the next round, even if the agent was lost earlier.
        let mut former = self.former.iter();
        let old = former.find(|(_, seat)| seat.instance == instance && instance != 0);
        if let Some(old) = old.map(|(node, _)| node.clone())
            && let Some(seat) = self.former.remove(&old)
        {
            self.former.insert(successor.clone(), seat);
        } else if let Some(rank) = missing {
            let seat = Seat {
                rank,
                instance,
                ..Seat::default()
            };
            self.former.insert(successor.clone(), seat);
        }
        if let Some(node) = known {
            self.leaves_round(&node);
            self.remove_agent(&node);
            self.depart(now, &node, "was killed and is being restarted");
        } else if let Some(rank) = missing {
            self.account(rank, || format!("node {successor} was restarted"));
            self.record_departure(instance);
        }
    }

    /// Handles an agent that leaves, and repeats this over a new connection.
    ///
    /// A coordinator that received `Leave` may have died before it recorded the departure.
    pub(in crate::coordinator) fn leaves(&mut self, now: Now, join: &Join) {
        let node = &join.node;
        self.speaks(join.instance);
        let known = self.agents.get(node);
        if known.is_some_and(|agent| agent.join.instance == join.instance) {
            self.leave(now, node);
        } else if let Some(rank) = self.missing_rank(join.instance)
            && join.instance != 0
        {
            self.account(rank, || format!("node {node} has left"));
            self.record_departure(join.instance);
            self.end_search_if_due(now);
        }
    }

    /// Handles an agent that resumes over a new connection.
    pub(in crate::coordinator) fn reattach(&mut self, now: Now, reattach: Reattach) {
        let Reattach {
            join, holds, left, ..
        } = reattach;
        let node = join.node.clone();
        // Other agents may have received the success, and may have left. So the coordinator never
        // revokes it.
        if let Some(held) = &holds
            && held.succeeded
            && self.has_succeeded(held.round)
            && self.origin.rules.has(Rule::SuccessIsKept)
        {
            let round = held.round;
            self.effects
                .push(Effect::notify(&node, Event::AllSucceeded { round }));
        }
        // The node keeps its rank, even if it leaves the round before this coordinator restores it.
        if let Some(last) = holds.as_ref().or(left.as_ref())
            && last.round == self.record.round
        {
            self.former.insert(node.clone(), join.seat(last.rank));
        }
        if let Some(left) = &left {
            if left.round == self.record.round
                && self.round.recovery().is_some_and(|it| !it.is_recorded())
            {
                self.account(left.rank, || format!("node {node} joins again"));
            }
            self.has_left(&node, left);
            self.skip_numbers(left.round);
        }
        let known = self.agents.get(&node);
        match (known.map(|agent| agent.phase), holds) {
            (Some(Phase::Joining { .. } | Phase::Member { .. }), None)
                if self.is_repeated(&join) =>
            {
                self.repeat(now, &node);
            }
            (_, None) => {
                let known = self.nodes.participants.len();
                let searched = self.round.search().map(|it| known + it.missing.len());
                // The node was a spare before the coordinator was replaced.
                if left.is_none() && searched >= Some(self.settings.max_nodes as usize) {
                    self.round.expect_spare();
                }
                self.join(now, Box::new(join));
            }
            (Some(Phase::Member { .. }), Some(held))
                if self.round.announced() == Some(held.round) =>
            {
                self.resume(now, &node, held);
            }
            (None, Some(held)) => self.regain(now, join, held),
            (Some(_), Some(held)) => self.dismiss(&node, held.round),
        }
    }

    /// `true` if the coordinator has already accepted this join.
    pub(super) fn is_repeated(&self, join: &Join) -> bool {
        let known = self.agents.get(&join.node);
        known.is_some_and(|agent| {
            let is_same = agent.join.instance == join.instance;
            let is_last = join.can_reattach() && agent.join.attempt == join.attempt;
            self.began.is_some() && is_same && is_last
        })
    }

    /// Repeats events that an agent may not have received after its join.
    pub(super) fn repeat(&mut self, now: Now, node: &NodeDesc) {
        let participants = &self.nodes.participants;
        let rank = participants.get(node).filter(|_| self.is_member(node));
        let Some(rank) = rank.copied() else {
            return;
        };
        let formed = self.round.formed();
        if self.round.is_ended() || formed.is_some_and(|formed| !formed.left.is_empty()) {
            // The agent has never received the round, which is over, or which a successful node has
            // left. The agent waits for the next one.
            self.restart_join(now, node);
            return self.arrive(now, node);
        }
        if self.is_recoverable() {
            self.announce_recoverable(node, self.host_rank());
        }
        let assignments = self.infos().map(|infos| assign(&infos));
        let event = self.formed_event(rank, assignments.as_deref());
        self.effects.push(Effect::notify(node, event));
        let held = HeldRound {
            round: self.round.number(),
            rank,
            ..HeldRound::default()
        };
        self.resume(now, node, held);
    }

    /// Handles a participant that resumes with its round.
    fn resume(&mut self, now: Now, node: &NodeDesc, held: HeldRound) {
        let round = held.round;
        self.repeat_fence(node);
        match (held.master, self.known_master()) {
            (Some((addr, port)), None) => self.publish_master(node, round, addr, port),
            // Rank 0, which has sent the endpoint, may not have received the confirmation.
            (said, Some((addr, port))) if said.is_none() || held.rank == 0 => {
                let event = Event::Master { round, addr, port };
                self.effects.push(Effect::notify(node, event));
            }
            _ => {}
        }
        if self.round.is_ended() {
            self.dismiss(node, round);
        }
        if held.succeeded {
            self.succeeded(now, node, round);
        }
    }

    /// Notifies an agent that its round is over.
    pub(super) fn dismiss(&mut self, node: &NodeDesc, round: u64) {
        if self.is_undecided() {
            return;
        }
        let formed = self.round.formed();
        let formed = formed.filter(|_| self.nodes.participants.contains_key(node));
        let reason = match (&self.round, formed) {
            (Round::Silent(..), _) => "all its nodes were silent",
            (_, Some(formed)) if !formed.reason.is_empty() => &formed.reason,
            _ => "the other nodes continued while this node had no connection",
        };
        let event = self.membership(round, reason);
        self.effects.push(Effect::notify(node, event));
    }

    /// Handles an unknown agent that holds a round.
    fn regain(&mut self, now: Now, join: Join, held: HeldRound) {
        let node = join.node.clone();
        let search = self.round.search();
        let expected = search.and_then(|search| search.missing.get(&held.rank).copied());
        let is_recorded = self.round.recovery().is_none_or(Recovery::is_recorded);
        let is_it = expected == Some(join.instance) || !is_recorded && expected == Some(0);
        let is_member = search.is_some()
            && (is_it || self.was_silent(&held))
            && self.record.round == held.round;
        if !is_member {
            if let Some(rank) = self.missing_rank(join.instance) {
                // The agent holds another round, or reports a wrong rank.
                self.account(rank, || format!("node {node} holds another round"));
            }
            let phase = Phase::Dropped;
            self.agents.insert(node.clone(), Agent { join, phase });
            self.skip_numbers(held.round);
            self.dismiss(&node, held.round);
            return self.end_search_if_due(now);
        }
        if let Some(search) = self.round.search_mut() {
            search.missing.remove(&held.rank);
        }
        if let Some(member) = self.record.members.get_mut(held.rank as usize) {
            *member = join.instance;
        }
        // The last coordinator of the agent may have granted a lease.
        let lease = match join.settings.fence {
            FencePolicy::Auto => AgentLease::Granted,
            FencePolicy::Unsaid | FencePolicy::Off => AgentLease::None,
        };
        let phase = Phase::Member { lease };
        self.agents.insert(node.clone(), Agent { join, phase });
        self.nodes.participants.insert(node.clone(), held.rank);
        self.repeat_fence(&node);
        if let Some((addr, port)) = held.master {
            self.set_master(addr, port);
        }
        // A reattached participant has left again, or all participants were silent.
        if self.round.is_ended() {
            self.dismiss(&node, held.round);
        }
        if held.succeeded
            && let Some(formed) = self.round.formed_mut()
        {
            formed.succeeded.insert(node);
        }
        self.end_search_if_due(now);
    }

    /// `true` if an agent may reattach after its connection has broken.
    pub(in crate::coordinator) fn may_reattach(&self, node: &NodeDesc) -> bool {
        let Some(agent) = self.agents.get(node) else {
            return false;
        };
        let holds = !matches!(agent.phase, Phase::Member { .. }) || self.is_recoverable();
        self.began.is_some() && agent.join.can_reattach() && holds
    }
}
