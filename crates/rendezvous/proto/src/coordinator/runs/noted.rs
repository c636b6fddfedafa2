//! The note of a run, which the next coordinator recovers it from, and the numbers of its rounds.

use std::time::Duration;

use super::{Effect, Run};
use crate::coordinator::note::RunNote;
use crate::coordinator::wire::Event;
use crate::mutant::{Mutant, is_broken};
use crate::{NodeDesc, fence};
use rdzv_core::machine::Outbox;
use rdzv_core::time::Now;

/// The highest number of a round that is believed where there is no note; any more of them follow.
pub(super) const HIGHEST: u64 = 1 << 48;

/// The next number of a round is at least so much higher than the last one that anybody in contact knows of, and less than
/// twice that: a later one may have been given out, of which nobody in contact knows.
const UNNOTED_STEP: u64 = 1000;

impl Run {
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
    pub(super) fn announce_success(&mut self, out: &mut Outbox<Effect>) {
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
    pub(super) fn is_recoverable(&self) -> bool {
        self.restartable && !self.note.members.is_empty()
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
            lease: match members.is_empty() {
                true => Duration::ZERO,
                false => self.lease(),
            },
            members,
            ..RunNote::default()
        };
        out.push(Effect::Note(self.note.clone()));
        if !self.is_recoverable() {
            return;
        }
        let (round, host) = (self.state.round, self.host_rank());
        for node in self.state.participants.keys() {
            let event = Event::Recoverable { round, host };
            out.push(Effect::Notify(node.clone(), event));
        }
    }

    /// The longest lease of the participants.
    fn lease(&self) -> Duration {
        let agents = self.state.participants.keys();
        let agents = agents.filter_map(|node| self.agents.get(node));
        let longest = agents.filter_map(|agent| agent.fence).max();
        let size = self.state.participants.len() as u32;
        longest.map_or(Duration::ZERO, |longest| fence::lease(longest, size))
    }

    /// The rank of the participant in whose process this coordinator is.
    pub(super) fn host_rank(&self) -> Option<u32> {
        let host = self.host.filter(|host| *host != 0)?;
        let mut members = self.note.members.iter();
        let rank = members.position(|member| *member == host)?;
        u32::try_from(rank).ok()
    }

    /// Somebody knows a round that this coordinator has never heard of: the number of a round is never used twice, also
    /// where there is no note of it.
    pub(super) fn skip_numbers(&mut self, known: u64) {
        let (round, next) = (self.state.round, self.unnoted_number(known.min(HIGHEST)));
        match self.state.complete {
            true if round < known => self.step = self.step.max(next.saturating_sub(round)),
            false if round <= known => self.state.round = round.max(next),
            _ => {}
        }
    }

    /// The number of the next round, where a coordinator without a note hears of this one. Each coordinator has another one,
    /// higher than those of the coordinators before it as far as it knows how many there were: of two that go on from the same
    /// round, the second need not know of the first.
    pub(super) fn unnoted_number(&self, known: u64) -> u64 {
        match is_broken(Mutant::NoJump) {
            false => known.max(self.least_number) + UNNOTED_STEP + self.draw % UNNOTED_STEP,
            true => known + 1,
        }
    }

    /// The next round has a number that no round had.
    pub(super) fn number_next_round(&mut self) {
        self.state.round += std::mem::replace(&mut self.step, 1).max(1);
    }

    /// An agent has left the run, or is lost: nobody is to wait for it in a recovery.
    pub(super) fn note_departure(&mut self, instance: u64, out: &mut Outbox<Effect>) {
        if instance == 0 || self.is_undecided() {
            return;
        }
        let mut members = self.note.members.iter_mut();
        if let Some(member) = members.find(|member| **member == instance) {
            *member = 0;
            out.push(Effect::Note(self.note.clone()));
        }
    }

    /// The note that a recovery under way began with.
    pub(in crate::coordinator) fn note_of_recovery(&self) -> Option<RunNote> {
        let recovery = self.recovery.as_ref()?;
        (!recovery.is_unnoted()).then(|| self.note.clone())
    }

    /// The note of a run that nobody takes part in.
    pub(in crate::coordinator) fn final_note(&self) -> Option<RunNote> {
        // Agents that came after everybody had left need not have been in a round of this life.
        let last = match self.state.complete {
            true => Some(self.state.round),
            false => self.state.round.checked_sub(1),
        };
        let is_known = self.announced.is_some() || self.state.closed || last.is_some();
        is_known.then(|| RunNote {
            round: self.note.round.max(last.unwrap_or(0)),
            closed: self.state.closed && !is_broken(Mutant::EndIsNotNoted),
            ..RunNote::default()
        })
    }
}
