//! Agents that come back over another connection, or were started in place of one that has ended.

use super::recovery::Recovery;
use super::{Agent, Effect, Phase, Run};
use crate::NodeDesc;
use crate::coordinator::wire::{Event, HeldRound, Join, Reattach};
use crate::mutant::{Mutant, is_broken};
use rdzv_core::machine::Outbox;
use rdzv_core::rank::assign;
use rdzv_core::time::Now;

impl Run {
    /// An agent has certainly ended: another one was started in place of it.
    pub(in crate::coordinator) fn ended(
        &mut self,
        now: Now,
        instance: u64,
        successor: &NodeDesc,
        out: &mut Outbox<Effect>,
    ) {
        if is_broken(Mutant::IgnoresSuccessors) {
            return;
        }
        self.speaks(instance);
        let mut agents = self.agents.iter();
        let known = agents.find(|(node, agent)| {
            agent.instance == instance && instance != 0 && *node != successor
        });
        let known = known.map(|(node, _)| node.clone());
        let takes_its_place = match (&known, self.missing_rank(instance)) {
            (Some(node), _) => {
                let was_former = self.former.contains(node);
                self.leaves_round(node);
                self.remove_agent(node, out);
                self.depart(now, node, "was killed, and is started again", out);
                was_former
            }
            (None, Some(rank)) if self.recovery.is_some() && instance != 0 => {
                self.account(rank, || format!("node {successor} was started again"));
                self.note_departure(instance, out);
                true
            }
            _ => false,
        };
        // It comes before nodes that were not in the round.
        if takes_its_place {
            self.former.insert(successor.clone());
        }
    }

    /// An agent leaves that has said so before, over a connection that broke: the coordinator that was told may have been killed
    /// before it took note.
    pub(in crate::coordinator) fn leaves(
        &mut self,
        now: Now,
        join: &Join,
        out: &mut Outbox<Effect>,
    ) {
        let node = &join.node;
        self.speaks(join.instance);
        let known = self.agents.get(node);
        if known.is_some_and(|agent| agent.instance == join.instance) {
            self.leave(now, node, out);
        } else if let Some(rank) = self.missing_rank(join.instance)
            && join.instance != 0
        {
            self.account(rank, || format!("node {node} has left"));
            self.note_departure(join.instance, out);
            self.end_recovery_if_due(now, out);
        }
    }

    /// An agent goes on over a new connection.
    pub(in crate::coordinator) fn reattach(
        &mut self,
        now: Now,
        reattach: Reattach,
        out: &mut Outbox<Effect>,
    ) {
        let Reattach {
            join, holds, left, ..
        } = reattach;
        let node = join.node.clone();
        // Others may have been told, and have gone: that all have succeeded is never taken back.
        if let Some(held) = &holds
            && held.succeeded
            && self.has_succeeded(held.round)
            && !is_broken(Mutant::SuccessIsTakenBack)
        {
            let round = held.round;
            out.push(Effect::Notify(node.clone(), Event::AllSucceeded { round }));
        }
        if let Some(left) = &left
            && left.round == self.note.round
            && let Some(recovery) = &self.recovery
            && recovery.is_unnoted()
        {
            self.account(left.rank, || format!("node {node} joins again"));
            self.former.insert(node.clone());
        }
        if let Some(left) = &left {
            self.has_left(&node, left);
            self.skip_numbers(left.round);
        }
        let known = self.agents.get(&node);
        match (known.map(|agent| agent.phase), holds) {
            (Some(Phase::Joining | Phase::Member), None) if self.is_repeated(&join) => {
                self.repeat(now, &node, out);
            }
            (_, None) => self.join(now, Box::new(join), out),
            (Some(Phase::Member), Some(held)) if self.announced == Some(held.round) => {
                self.resume(now, &node, held, out);
            }
            (None, Some(held)) => self.regain(now, join, held, out),
            (Some(_), Some(held)) => self.dismiss(&node, held.round, out),
        }
    }

    /// Whether a join has been taken in already.
    pub(super) fn is_repeated(&self, join: &Join) -> bool {
        let known = self.agents.get(&join.node);
        known.is_some_and(|agent| {
            let is_last = agent.attempt.is_some() && agent.attempt == join.attempt;
            self.restartable && is_last && agent.instance == join.instance
        })
    }

    /// Repeats the events that an agent which has joined before has not heard.
    pub(super) fn repeat(&mut self, now: Now, node: &NodeDesc, out: &mut Outbox<Effect>) {
        let is_member = self.agents.get(node).map(|agent| agent.phase) == Some(Phase::Member);
        let Some(rank) = self
            .state
            .participants
            .get(node)
            .copied()
            .filter(|_| is_member)
        else {
            return;
        };
        if self.change_announced {
            // It has never heard of the round, which does not hold any more: it waits for the next one.
            if let Some(agent) = self.agents.get_mut(node) {
                agent.phase = Phase::Joining;
            }
            self.restart_join_timer(now, node);
            return self.arrive(now, node, out);
        }
        let infos = self.infos();
        let assignments = infos.as_ref().map(|infos| assign(infos));
        let notify = |event| Effect::Notify(node.clone(), event);
        let round = self.state.round;
        if self.is_recoverable() {
            let host = self.host_rank();
            out.push(notify(Event::Recoverable { round, host }));
        }
        out.push(notify(Event::Formed {
            round,
            rank,
            world_size: self.state.participants.len() as u32,
            assignment: assignments.and_then(|all| all.get(rank as usize).copied()),
        }));
        let held = HeldRound {
            round,
            rank,
            master: None,
            succeeded: false,
            size: 0,
            host: None,
        };
        self.resume(now, node, held, out);
    }

    /// A participant goes on where it was.
    fn resume(&mut self, now: Now, node: &NodeDesc, held: HeldRound, out: &mut Outbox<Effect>) {
        let round = held.round;
        match (held.master, self.masters.current()) {
            (Some((addr, port)), None) => self.publish_master(node, round, addr, port, out),
            // The one that has said it need not have heard that it was taken in.
            (said, Some((addr, port))) if said.is_none() || held.rank == 0 => {
                let event = Event::Master { round, addr, port };
                out.push(Effect::Notify(node.clone(), event));
            }
            _ => {}
        }
        if self.change_announced {
            self.dismiss(node, round, out);
        }
        if held.succeeded {
            self.succeeded(now, node, round, out);
        }
    }

    /// The round of an agent does not hold any more.
    pub(super) fn dismiss(&self, node: &NodeDesc, round: u64, out: &mut Outbox<Effect>) {
        if self.is_undecided() {
            return;
        }
        let recovery = self.recovery.as_ref();
        let reason = match recovery.is_some_and(|recovery| recovery.is_silent) {
            true => "nothing was heard of any of its nodes",
            false => "the others went on while this node had no connection",
        };
        let event = Event::Membership {
            round,
            waiting: self.state.wait_list.len() as u32,
            reason: reason.to_owned(),
        };
        out.push(Effect::Notify(node.clone(), event));
    }

    /// An agent that this coordinator does not know holds a round.
    fn regain(&mut self, now: Now, join: Join, held: HeldRound, out: &mut Outbox<Effect>) {
        let node = join.node.clone();
        let expected = self.missing.get(&held.rank).copied();
        let is_unnoted = self.recovery.as_ref().map(Recovery::is_unnoted);
        let is_member = is_unnoted.is_some_and(|is_unnoted| {
            let is_it = expected == Some(join.instance) || is_unnoted && expected == Some(0);
            (is_it || self.was_silent(&held)) && self.note.round == held.round
        });
        let phase = if is_member {
            Phase::Member
        } else {
            Phase::Dropped
        };
        if is_member {
            self.missing.remove(&held.rank);
            if let Some(member) = self.note.members.get_mut(held.rank as usize) {
                *member = join.instance;
            }
        } else if let Some(rank) = self.missing_rank(join.instance) {
            // It holds another round, or says another rank than it has.
            self.account(rank, || format!("node {node} holds another round"));
        }
        self.agents
            .insert(node.clone(), Agent::new(now, join, phase));
        if !is_member {
            self.skip_numbers(held.round);
            self.dismiss(&node, held.round, out);
            return self.end_recovery_if_due(now, out);
        }
        self.state.participants.insert(node.clone(), held.rank);
        if let Some((addr, port)) = held.master {
            self.masters.set(addr, port);
        }
        // Somebody who had come back is gone again, of which the others were told then.
        if self.change_announced {
            self.dismiss(&node, held.round, out);
        }
        if held.succeeded {
            self.succeeded.insert(node);
        }
        self.end_recovery_if_due(now, out);
    }

    /// Whether an agent whose connection broke may come back over another one.
    pub(in crate::coordinator) fn may_reattach(&self, node: &NodeDesc) -> bool {
        let Some(agent) = self.agents.get(node).filter(|_| self.restartable) else {
            return false;
        };
        let holds = agent.phase != Phase::Member || self.is_recoverable();
        agent.attempt.is_some() && holds
    }
}
