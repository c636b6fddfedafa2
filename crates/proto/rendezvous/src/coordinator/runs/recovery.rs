//! State recovery: a coordinator that was started again learns the last round from its members.
//!
//! The note names the last round that was announced, and the instances of its participants. Accounted for is
//! a participant that reattaches, holding the round or not. Until recovery is over, nothing is decided:
//!
//! | accounted for | then |
//! |---|---|
//! | all, and all hold the round | it holds on; nobody notices |
//! | all, and some do not hold it any more | it is over, and the next one forms |
//! | after [`WINDOW`], more than half, or one that does not hold it any more | the same; those who are missing are lost |
//! | half or fewer, and all of them hold it | it waits, and says for whom |
//!
//! Two whole rounds never run because of that: the round of the note is the last one that was announced, so
//! everybody of earlier ones has left them. The next one forms only when everybody who is here has left this
//! one by their own word. And a coordinator that starts in the wrong part of a cut network touches nobody.

use std::time::Duration;

use super::{Agent, Effect, Phase, Run};
use crate::coordinator::keys::{self, Field};
use crate::coordinator::note::RunNote;
use crate::coordinator::wire::{Event, HeldRound, Join, Reattach};
use crate::{NodeDesc, recovering::Recovering};
use rdzv_core::machine::Outbox;
use rdzv_core::rank::assign;
use rdzv_core::time::{Mono, Now};

/// The time that participants have before they are lost, if more than half are back.
pub const WINDOW: Duration = Duration::from_secs(3);

/// More of it for each participant, so that a storm of connections loses nobody.
const WINDOW_EACH: Duration = Duration::from_micros(200);

/// Time between two messages about who is missing.
const REMIND: Duration = Duration::from_secs(10);

/// The highest number of a round that is believed where there is no note; any more of them follow.
const HIGHEST: u64 = 1 << 48;

/// A recovery under way.
#[derive(Debug)]
pub(super) struct Recovery {
    began: Mono,
    /// From when on those who are missing are lost, if they are not too many.
    window_ends: Mono,
    /// When to look at it next.
    pub(super) at: Mono,
    /// Participants that hold the round no more, though nobody has seen them leave it.
    left: Vec<String>,
}

impl Run {
    /// Begins with what the coordinator before has left.
    pub(in crate::coordinator) fn recover(&mut self, now: Now, note: RunNote) {
        self.state.round = note.round;
        self.state.closed = note.closed;
        self.announced = Some(note.round);
        let waits = !note.closed && note.members.iter().any(|member| *member != 0);
        self.note = note;
        if waits {
            let each = WINDOW_EACH * u32::try_from(self.note.members.len()).unwrap_or(u32::MAX);
            let window_ends = now.mono + WINDOW + each;
            self.missing = self.note.members.clone();
            self.missing.retain(|member| *member != 0);
            self.state.complete = true;
            self.recovery = Some(Recovery {
                began: now.mono,
                window_ends,
                at: window_ends,
                left: Vec::new(),
            });
        } else {
            self.state.round += 1;
        }
        self.dirty = true;
    }

    /// An agent goes on over a new connection.
    pub(in crate::coordinator) fn reattach(
        &mut self,
        now: Now,
        reattach: Reattach,
        out: &mut Outbox<Effect>,
    ) {
        let Reattach { join, holds } = reattach;
        let node = join.node.clone();
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
        let infos = self.infos();
        let assignments = infos.as_ref().map(|infos| assign(infos));
        let notify = |event| Effect::Notify(node.clone(), event);
        let round = self.state.round;
        if self.is_recoverable() {
            out.push(notify(Event::Recoverable { round }));
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
        };
        self.resume(now, node, held, out);
    }

    /// A participant goes on where it was.
    fn resume(&mut self, now: Now, node: &NodeDesc, held: HeldRound, out: &mut Outbox<Effect>) {
        let round = held.round;
        match (held.master, self.masters.current()) {
            (Some((addr, port)), None) => self.publish_master(node, round, addr, port, out),
            (None, Some((addr, port))) => out.push(Effect::Notify(
                node.clone(),
                Event::Master { round, addr, port },
            )),
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
    fn dismiss(&self, node: &NodeDesc, round: u64, out: &mut Outbox<Effect>) {
        let event = Event::Membership {
            round,
            waiting: self.state.wait_list.len() as u32,
            reason: "the others went on while this node had no connection".to_owned(),
        };
        out.push(Effect::Notify(node.clone(), event));
    }

    /// An agent that this coordinator does not know holds a round.
    fn regain(&mut self, now: Now, join: Join, held: HeldRound, out: &mut Outbox<Effect>) {
        let node = join.node.clone();
        let place = held.rank as usize;
        let is_member = self.recovery.is_some()
            && self.note.round == held.round
            && self.note.members.get(place) == Some(&join.instance)
            && self.missing.contains(&join.instance);
        let phase = if is_member {
            Phase::Member
        } else {
            Phase::Dropped
        };
        self.missing.retain(|missing| *missing != join.instance);
        self.agents
            .insert(node.clone(), Agent::new(now, join, phase));
        if !is_member {
            // The number of a round is never used twice, also where there is no note of it.
            if self.announced.is_none() && self.state.participants.is_empty() {
                self.state.round = self.state.round.max(held.round.min(HIGHEST) + 1);
            }
            self.dismiss(&node, held.round, out);
            return self.end_recovery_if_due(now, out);
        }
        self.state.participants.insert(node.clone(), held.rank);
        if let Some((addr, port)) = held.master {
            self.masters.set(addr, port);
        }
        if held.succeeded {
            self.succeeded.insert(node);
        }
        self.end_recovery_if_due(now, out);
    }

    /// An agent that holds no round has come while state is recovered.
    pub(super) fn account_for(&mut self, now: Now, node: &NodeDesc, out: &mut Outbox<Effect>) {
        let instance = self.agents.get(node).map(|agent| agent.instance);
        if let Some(at) = self.missing.iter().position(|it| Some(*it) == instance) {
            self.missing.remove(at);
            if let Some(recovery) = &mut self.recovery {
                recovery.left.push(node.to_string());
            }
            // Those of the last round come before others.
            self.former.insert(node.clone());
        }
        self.end_recovery_if_due(now, out);
    }

    /// Ends recovery if enough is known, and goes on with what it has brought.
    pub(super) fn end_recovery_if_due(&mut self, now: Now, out: &mut Outbox<Effect>) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        let size = self.note.members.len();
        let is_late = recovery.window_ends <= now.mono;
        let enough = match is_late {
            true => self.missing.len() * 2 < size || !recovery.left.is_empty(),
            false => self.missing.is_empty(),
        };
        let elapsed = now.mono.since(recovery.began);
        if !enough {
            if recovery.at <= now.mono {
                recovery.at = now.mono + REMIND;
                let ranks = self.note.members.iter().enumerate();
                let ranks = ranks.filter(|(_, member)| self.missing.contains(member));
                let missing = ranks.map(|(rank, _)| rank as u32).collect();
                out.push(Effect::Recovering(Recovering {
                    round: self.note.round,
                    size: size as u32,
                    missing,
                    elapsed,
                }));
            }
            return;
        }
        let left = std::mem::take(&mut recovery.left);
        self.recovery = None;
        let lost = std::mem::take(&mut self.missing);
        for instance in &lost {
            self.note_departure(*instance, out);
        }
        out.push(Effect::Recovering(Recovering {
            round: self.note.round,
            size: size as u32,
            missing: Vec::new(),
            elapsed,
        }));
        let reason = match (&left[..], &lost[..]) {
            _ if self.state.participants.len() == size => None,
            ([node, ..], _) => Some(format!("node {node} joins again")),
            ([], [_, ..]) => Some(format!(
                "{} of {size} nodes did not come back to the rendezvous, which was started again",
                lost.len()
            )),
            ([], []) => Some("a node has left".to_owned()),
        };
        self.restore(now, reason, out);
    }

    /// The round of the note, with those who hold it.
    fn restore(&mut self, now: Now, reason: Option<String>, out: &mut Outbox<Effect>) {
        let participants: Vec<NodeDesc> = self.state.participants.keys().cloned().collect();
        self.former.extend(participants.iter().cloned());
        self.awaited = participants.into_iter().collect();
        let programs = self.awaited.iter().map(|node| {
            let agent = self.agents.get(node)?;
            agent.program.clone()
        });
        self.round_runs = programs.collect::<Option<_>>().unwrap_or_default();
        let joining = self.agents.iter();
        let joining = joining.filter(|(_, agent)| agent.phase == Phase::Joining);
        for node in joining.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            self.admit(now, &node);
        }
        let is_whole = reason.is_none();
        if let Some(reason) = reason {
            self.announce_change(&reason, out);
        }
        if self.state.participants.is_empty() {
            self.state.complete = false;
            self.state.round += 1;
            self.begin_round(now);
        }
        if is_whole {
            if let Some((addr, port)) = self.masters.current() {
                self.store_master(addr, port, out);
            }
            self.announce_success(out);
            if !self.state.wait_list.is_empty() {
                self.announce_change("a node waits to join", out);
            }
        }
        self.dirty = true;
        self.advance(now, out);
    }

    /// The address stands in the store, and those who lack it are told.
    fn store_master(&mut self, addr: String, port: u16, out: &mut Outbox<Effect>) {
        let round = self.state.round;
        for (field, value) in [(Field::Addr, addr.clone()), (Field::Port, port.to_string())] {
            out.push(Effect::Store {
                key: keys::master(&self.id, round, field),
                value: value.into_bytes(),
            });
        }
        self.announce_master(addr, port, out);
    }

    /// The workers of a participant have succeeded.
    pub(in crate::coordinator) fn succeeded(
        &mut self,
        now: Now,
        node: &NodeDesc,
        round: u64,
        out: &mut Outbox<Effect>,
    ) {
        let takes_part = self.state.complete && self.state.participants.contains_key(node);
        if takes_part && self.announced == Some(round) {
            self.succeeded.insert(node.clone());
            self.end_recovery_if_due(now, out);
            self.announce_success(out);
        }
    }

    /// Tells everybody if the workers of all participants have succeeded.
    fn announce_success(&mut self, out: &mut Outbox<Effect>) {
        let mut participants = self.state.participants.keys();
        let is_whole = self.recovery.is_none()
            && self.is_recoverable()
            && self.state.participants.len() == self.note.members.len();
        let all = self.note.succeeded || participants.all(|node| self.succeeded.contains(node));
        if !is_whole || !all {
            return;
        }
        if !self.note.succeeded {
            self.note.succeeded = true;
            out.push(Effect::Note(self.note.clone()));
        }
        for node in &self.succeeded {
            let round = self.state.round;
            let event = Event::AllSucceeded { round };
            out.push(Effect::Notify(node.clone(), event));
        }
    }

    /// Whether a coordinator that is started again can recover the last round.
    fn is_recoverable(&self) -> bool {
        self.restartable && !self.note.members.is_empty()
    }

    /// Whether an agent whose connection broke may come back over another one.
    pub(in crate::coordinator) fn may_reattach(&self, node: &NodeDesc) -> bool {
        let Some(agent) = self.agents.get(node).filter(|_| self.restartable) else {
            return false;
        };
        let holds = agent.phase != Phase::Member || self.is_recoverable();
        agent.attempt.is_some() && holds
    }

    /// A round is about to be announced: it is noted before.
    pub(super) fn note_round(&mut self, out: &mut Outbox<Effect>) {
        let mut members = vec![0; self.state.participants.len()];
        for (node, rank) in &self.state.participants {
            let agent = self
                .agents
                .get(node)
                .filter(|agent| agent.attempt.is_some());
            let Some(agent) = agent else {
                members.clear();
                break;
            };
            if let Some(member) = members.get_mut(*rank as usize) {
                *member = agent.instance;
            }
        }
        self.succeeded.clear();
        self.note = RunNote {
            round: self.state.round,
            members,
            closed: false,
            succeeded: false,
        };
        out.push(Effect::Note(self.note.clone()));
        if !self.is_recoverable() {
            return;
        }
        let round = self.state.round;
        for node in self.state.participants.keys() {
            let event = Event::Recoverable { round };
            out.push(Effect::Notify(node.clone(), event));
        }
    }

    /// An agent has left the run, or is lost: nobody is to wait for it in a recovery.
    pub(super) fn note_departure(&mut self, instance: u64, out: &mut Outbox<Effect>) {
        let mut members = self.note.members.iter_mut();
        if let Some(member) = members.find(|member| **member == instance) {
            *member = 0;
            out.push(Effect::Note(self.note.clone()));
        }
    }

    /// The note that a recovery under way began with.
    pub(in crate::coordinator) fn note_of_recovery(&self) -> Option<RunNote> {
        self.recovery.is_some().then(|| self.note.clone())
    }

    /// The note of a run that nobody takes part in.
    pub(in crate::coordinator) fn final_note(&self) -> Option<RunNote> {
        let is_known = self.announced.is_some() || self.state.closed;
        is_known.then(|| RunNote {
            round: self.note.round,
            closed: self.state.closed,
            ..RunNote::default()
        })
    }
}
