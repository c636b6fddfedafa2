//! State recovery: a coordinator that was started again learns the last round from its members.
//!
//! The note names the last round that was announced, and the instances of its participants. Accounted for is
//! a participant that reattaches, holding the round or not, or that has certainly ended: its successor says so, which
//! the same keeper has started. Until recovery is over, nothing is decided:
//!
//! | accounted for | then |
//! |---|---|
//! | all, and all hold the round | it holds on; nobody notices |
//! | all, and some do not hold it any more | it is over, and the next one forms |
//! | after [`WINDOW`] (voters: 1.05 times `node_timeout`, and 0.25 s, since the last coordinator was heard of), more than half, or one that does not hold it any more | the same; those who are missing are lost |
//! | half or fewer, and all of them hold it | it waits, and says for whom; with voters behind it, which are a majority, those who are missing are lost (all of them only where they have a fence) |
//!
//! Two whole rounds never run because of that: the round of the note is the last one that was announced, so
//! everybody of earlier ones has left them. The next one forms only when everybody who is here has left this
//! one by their own word. And a coordinator that starts in the wrong part of a cut network touches nobody.
//!
//! Without a note, the round is the last one that anybody reports, and nobody may be missing:
//!
//! | after [`UNNOTED`] at least | then |
//! |---|---|
//! | all are accounted for, and all hold the round | it holds on |
//! | all are accounted for, and some do not hold it any more | it is over, and the next one forms |
//! | somebody is missing | it waits, and says for whom |
//!
//! The agent in whose process the coordinator was has certainly ended then too. Where the coordinator before was at another
//! address, it may live, and nothing is decided (`elsewhere.rs`).

use std::time::Duration;

use super::noted::HIGHEST;
use super::{Effect, Phase, Run};
use crate::coordinator::keys::{self, Field};
use crate::coordinator::note::RunNote;
use crate::coordinator::wire::{HeldRound, LastCoordinator};
use crate::mutant::{Mutant, is_broken};
use crate::{NodeDesc, fence, recovering::Recovering, silence};
use rdzv_core::machine::Outbox;
use rdzv_core::reminder;
use rdzv_core::time::{Mono, Now};

/// The time that participants have before they are lost, if more than half are back.
pub const WINDOW: Duration = Duration::from_secs(3);

/// The time in which a coordinator without a note would hear of members of an older round; they dial again
/// at least once a second.
pub(super) const UNNOTED: Duration = Duration::from_millis(1500);

/// More of it for each participant, so that a storm of connections loses nobody.
const WINDOW_EACH: Duration = Duration::from_micros(200);

/// Time between two messages about who is missing.
const REMIND: Duration = Duration::from_secs(10);

/// The time until people are told that a coordinator may live elsewhere: more of the members have come then.
const SAY_UNDECIDED_AFTER: Duration = Duration::from_millis(500);

/// The highest number of participants that is believed where there is no note.
const MOST: u32 = 1 << 20;

/// A recovery under way.
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) began: Mono,
    /// From when on those who are missing are lost, if they are not too many. Without a note that never happens.
    pub(super) window_ends: Option<Mono>,
    /// When to look at it next.
    pub(super) at: Mono,
    /// When people are told who is missing.
    pub(super) say_at: Mono,
    /// Why the round is over, if it is: sentences about participants that hold it no more.
    pub(super) over: Vec<String>,
    /// The round is over, and nothing is heard of any of its participants.
    pub(super) is_silent: bool,
    /// The coordinator of the round, which may live.
    pub(super) elsewhere: Option<LastCoordinator>,
}

impl Recovery {
    /// Whether there is no note of the round.
    pub(super) fn is_unnoted(&self) -> bool {
        self.window_ends.is_none()
    }

    /// Whether there is one.
    pub(super) fn is_noted(&self) -> bool {
        !self.is_unnoted()
    }
}

impl Run {
    /// Begins with what the coordinator before has left.
    pub(in crate::coordinator) fn recover(&mut self, now: Now, note: RunNote) {
        self.not_before = None;
        self.state.round = note.round;
        self.state.closed = note.closed;
        self.announced = Some(note.round);
        let waits = !note.closed && note.members.iter().any(|member| *member != 0);
        self.note = note;
        if waits && self.note.silent {
            self.recover_silent(now);
        } else if waits {
            let each = WINDOW_EACH * u32::try_from(self.note.members.len()).unwrap_or(u32::MAX);
            let window_ends = match self.electors_heard {
                None => now.mono + WINDOW + each,
                Some(heard) => self.silence_ends(now.mono, heard),
            };
            let members = self.note.members.iter().enumerate();
            let members = members.map(|(rank, instance)| (rank as u32, *instance));
            self.missing = members.filter(|(_, instance)| *instance != 0).collect();
            self.state.complete = true;
            self.recovery = Some(Recovery {
                began: now.mono,
                window_ends: Some(window_ends),
                at: window_ends.min(now.mono + reminder::FIRST),
                say_at: now.mono + reminder::FIRST,
                over: Vec::new(),
                is_silent: false,
                elsewhere: None,
            });
        } else {
            self.state.round += 1;
        }
        self.dirty = true;
    }

    /// Until when participants of a round of voters have to be back. The last coordinator was heard of then: the agents
    /// have looked for another one since, and the workers of one that is cut off stand still.
    fn silence_ends(&self, now: Mono, heard: Mono) -> Mono {
        let members = u32::try_from(self.note.members.len()).unwrap_or(u32::MAX);
        let timeout = self.node_timeout.unwrap_or(silence::NODE_TIMEOUT);
        let lease = fence::lease(timeout, members);
        let silent = heard + fence::lost_after(lease).max(self.fence());
        // Where it took long to elect one, they come as soon as they find it.
        silent.max(now + lease / 2)
    }

    /// Begins, or goes on, without a note, with a round that somebody reports, of a coordinator that may live `elsewhere`.
    pub(in crate::coordinator) fn recover_unnoted(
        &mut self,
        now: Now,
        known: &HeldRound,
        elsewhere: Option<&LastCoordinator>,
        out: &mut Outbox<Effect>,
    ) {
        let unnoted = self.recovery.as_ref().map(Recovery::is_unnoted);
        let is_first = match unnoted {
            None => self.announced.is_none() && self.note.members.is_empty(),
            Some(is_unnoted) => is_unnoted && self.note.round < known.round,
        };
        let is_sensible = known.rank < known.size && known.size <= MOST && known.round < HIGHEST;
        if !is_first || !is_sensible {
            return;
        }
        // Newcomers wait; those who hold an older round are in none.
        let older = self.state.round;
        for node in std::mem::take(&mut self.state.participants).into_keys() {
            if let Some(agent) = self.agents.get_mut(&node)
                && agent.phase == Phase::Member
            {
                agent.phase = Phase::Dropped;
                self.dismiss(&node, older, out);
            }
        }
        self.state.wait_list.clear();
        self.state.redundancy_list.clear();
        self.succeeded.clear();
        self.silent.clear();
        self.masters.forget();
        self.state.round = known.round;
        self.state.complete = true;
        (self.last_call, self.state.deadline) = (None, None);
        self.announced = Some(known.round);
        self.change_announced = false;
        self.note = RunNote {
            round: known.round,
            members: vec![0; known.size as usize],
            ..RunNote::default()
        };
        self.missing = (0..known.size).map(|rank| (rank, 0)).collect();
        self.recovery = Some(Recovery {
            began: now.mono,
            window_ends: None,
            at: match elsewhere {
                None => self.not_before.unwrap_or(now.mono).max(now.mono),
                Some(_) => now.mono + SAY_UNDECIDED_AFTER,
            },
            say_at: now.mono + reminder::FIRST,
            over: Vec::new(),
            is_silent: false,
            elsewhere: elsewhere.cloned(),
        });
        if let Some(host) = known.host.filter(|_| elsewhere.is_none()) {
            self.account(host, || {
                "the agent that hosted the rendezvous has ended".to_owned()
            });
        }
        self.dirty = true;
    }

    /// Nobody waits for a participant any more, which does not hold the round.
    pub(super) fn account(&mut self, rank: u32, why: impl FnOnce() -> String) {
        if self.missing.remove(&rank).is_some()
            && let Some(recovery) = &mut self.recovery
        {
            self.note.torn = true;
            recovery.over.push(why());
        }
    }

    /// The instance of a participant that is waited for, by its rank; of one whose instance nobody knows, the rank has to do.
    pub(super) fn missing_rank(&self, instance: u64) -> Option<u32> {
        let mut missing = self.missing.iter();
        let found = missing.find(|(_, known)| **known == instance);
        found.map(|(rank, _)| *rank)
    }

    /// A participant is not in contact any more, and need not have ended: it is waited for again.
    pub(super) fn await_again(&mut self, node: &NodeDesc) {
        let rank = self.state.participants.get(node).copied();
        if let (Some(rank), Some(recovery)) = (rank, &self.recovery)
            && recovery.is_unnoted()
        {
            let instance = self.agents.get(node).map_or(0, |agent| agent.instance);
            self.missing.insert(rank, instance);
        }
    }

    /// A participant that had come back is gone while others are still waited for.
    pub(super) fn left_while_recovering(
        &mut self,
        now: Now,
        rank: u32,
        why: impl FnOnce() -> String,
        out: &mut Outbox<Effect>,
    ) {
        if let Some(recovery) = &mut self.recovery
            && !self.missing.contains_key(&rank)
        {
            recovery.over.push(why());
            self.end_recovery_if_due(now, out);
        }
    }

    /// An agent that holds no round has come while state is recovered.
    pub(super) fn account_for(&mut self, now: Now, node: &NodeDesc, out: &mut Outbox<Effect>) {
        let instance = self.agents.get(node).map_or(0, |agent| agent.instance);
        if let Some(rank) = self.missing_rank(instance).filter(|_| instance != 0) {
            self.account(rank, || format!("node {node} joins again"));
            // Those of the last round come before others.
            self.former.insert(node.clone());
        }
        self.end_recovery_if_due(now, out);
    }

    /// Ends recovery if enough is known, and goes on with what it has brought.
    pub(super) fn end_recovery_if_due(&mut self, now: Now, out: &mut Outbox<Effect>) {
        if self.is_undecided() {
            if let Some(recovery) = self.recovery.as_mut().filter(|it| it.at <= now.mono) {
                recovery.at = now.mono + REMIND;
                self.say_undecided(now, out);
            }
            return;
        }
        if !self.is_decided(now.mono) {
            return self.say_missing(now, out);
        }
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        let over = std::mem::take(&mut recovery.over);
        let (is_unnoted, is_silent) = (recovery.is_unnoted(), recovery.is_silent);
        let lost = std::mem::take(&mut self.missing);
        if !is_silent && self.all_are_silent(&lost) {
            self.note_silence(out);
            return self.await_word(now);
        }
        let ended = self.recovering(now);
        self.recovery = None;
        if is_silent {
            self.note.silent = false;
            self.keep_silent(&lost);
            // Also if nobody is missing any more.
            out.push(Effect::Note(self.note.clone()));
        }
        for instance in lost.values() {
            self.note_departure(*instance, out);
        }
        if is_unnoted {
            out.push(Effect::Note(self.note.clone()));
            // A number that was given out meanwhile is never used twice.
            self.step = self.unnoted_number(self.state.round) - self.state.round;
        }
        if let Some(ended) = ended {
            out.push(Effect::Recovering(ended));
        }
        let size = self.note.members.len();
        let reason = match (over.into_iter().next(), lost.len()) {
            _ if !is_silent && self.state.participants.len() == size => None,
            (Some(reason), _) => Some(reason),
            (None, _) if is_silent => Some("nothing was heard of any of its nodes".to_owned()),
            (None, 0) => Some("a node has left".to_owned()),
            (None, lost) => Some(format!(
                "{lost} of {size} nodes did not come back to the rendezvous, whose coordinator is a new one"
            )),
        };
        self.restore(now, reason, out);
    }

    /// Whether enough is known, if state is being recovered.
    fn is_decided(&self, now: Mono) -> bool {
        let Some(recovery) = &self.recovery else {
            return false;
        };
        let has_come = self.missing.is_empty();
        let is_lost = self.lost_at(recovery).is_some_and(|at| at <= now);
        match recovery.window_ends {
            Some(_) if recovery.is_silent => {
                let is_heard = !self.state.participants.is_empty();
                is_heard || !recovery.over.is_empty() || self.recovers
            }
            Some(_) => has_come || is_lost,
            // Until then, somebody may come who knows of a later round.
            None => {
                let is_early = self.not_before.is_some_and(|at| now < at);
                !is_early && (has_come || is_lost)
            }
        }
    }

    /// When those who are missing are lost, if they will be.
    fn lost_at(&self, recovery: &Recovery) -> Option<Mono> {
        let size = self.note.members.len();
        let Some(ends) = recovery.window_ends else {
            return match is_broken(Mutant::MissingAreLost) {
                false => self.recovers.then_some(recovery.began + WINDOW),
                true => Some(recovery.began),
            };
        };
        let is_half = self.missing.len() * 2 == size && is_broken(Mutant::HalfRestores);
        let is_most = self.missing.len() * 2 < size || is_half;
        // Of voters, a majority has elected this coordinator: those who are missing are cut off, or gone. If all
        // are, their workers stand still only where they have a fence.
        let is_fenced = !self.note.lease.is_zero();
        let is_elected = self.electors_heard.is_some() && (self.missing.len() < size || is_fenced);
        let are_lost = is_most || is_elected || !recovery.over.is_empty() || self.recovers;
        are_lost.then_some(match is_broken(Mutant::NoWindow) {
            false => ends,
            true => recovery.began,
        })
    }

    /// Says who is missing, if it is time to.
    fn say_missing(&mut self, now: Now, out: &mut Outbox<Effect>) {
        let Some(recovery) = self.recovery.as_mut().filter(|it| it.at <= now.mono) else {
            return;
        };
        let says = recovery.say_at <= now.mono;
        if says {
            recovery.say_at = now.mono + REMIND;
        }
        let decides_at = recovery.window_ends.unwrap_or(recovery.began + WINDOW);
        recovery.at = match decides_at > now.mono {
            true => decides_at.min(recovery.say_at),
            false => recovery.say_at,
        };
        if says && let Some(recovering) = self.recovering(now) {
            out.push(Effect::Recovering(recovering));
        }
    }

    /// The state of the recovery under way, if there is one.
    pub(in crate::coordinator) fn recovering(&self, now: Now) -> Option<Recovering> {
        let recovery = self.recovery.as_ref()?;
        let lost_at = self.lost_at(recovery).filter(|_| !recovery.is_silent);
        Some(Recovering {
            round: self.note.round,
            size: self.note.members.len() as u32,
            missing: self.missing.keys().copied().collect(),
            elapsed: now.mono.since(recovery.began),
            left: lost_at.map(|at| at.since(now.mono)),
            is_noted: recovery.is_noted(),
            silent: self.silent_hosts(),
            elsewhere: recovery.elsewhere.as_ref().map(|last| last.address.clone()),
        })
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
            self.number_next_round();
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
}
