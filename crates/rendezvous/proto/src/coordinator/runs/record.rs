//! The record of a run for the next coordinator, and the numbers of its rounds.

use super::round::Round;
use super::{Effect, Output, Run};
use crate::coordinator::note::RunNote;
use crate::coordinator::wire::Event;
use crate::{NodeDesc, Rule};

/// Bound of the round numbers that a coordinator without a record accepts.
///
/// The limit leaves room for further numbers.
pub(super) const HIGHEST: u64 = 1 << 48;

impl Run {
    /// `true` if a restarted coordinator can recover the last round.
    pub(super) fn is_recoverable(&self) -> bool {
        self.began.is_some() && !self.record.members.is_empty()
    }

    /// Records a round before it is announced.
    pub(super) fn record_round(&mut self) {
        let mut members = vec![0; self.nodes.participants.len()];
        for (node, rank) in &self.nodes.participants {
            let agent = self.agents.get(node);
            let Some(agent) = agent.filter(|agent| agent.join.can_reattach()) else {
                members.clear();
                break;
            };
            if let Some(member) = members.get_mut(*rank as usize) {
                *member = agent.join.instance;
            }
        }
        self.record = RunNote {
            round: self.round.number(),
            members,
            ..RunNote::default()
        };
        self.choose_fence();
        self.note();
        if self.is_recoverable() {
            let host = self.host_rank();
            let participants = self.nodes.participants.keys().cloned();
            for node in participants.collect::<Vec<_>>() {
                self.announce_recoverable(&node, host);
            }
        }
    }

    /// Notifies a participant that the round survives this coordinator.
    pub(super) fn announce_recoverable(&mut self, node: &NodeDesc, host: Option<u32>) {
        let round = self.round.number();
        let event = Event::Recoverable { round, host };
        self.effects.push(Effect::notify(node, event));
        if !self.record.lease.is_zero() {
            self.announce_fence(node, true);
        }
    }

    /// Saves the record for the next coordinator, before any later output.
    pub(super) fn note(&mut self) {
        if self.began.is_some() {
            let (run, note) = (self.id.clone(), Some(self.record.clone()));
            self.effects
                .push(Effect::Output(Output::Note { run, note }));
        }
    }

    /// Returns the rank of the participant that hosts this coordinator.
    ///
    /// `None` if voters have elected the coordinator, or if no participant hosts it.
    pub(super) fn host_rank(&self) -> Option<u32> {
        let host = self.origin.host().filter(|host| *host != 0)?;
        let mut members = self.record.members.iter();
        let rank = members.position(|member| *member == host)?;
        u32::try_from(rank).ok()
    }

    /// Skips the number of an unknown round that an agent reports.
    ///
    /// This prevents two rounds with the same number, even without a record.
    pub(super) fn skip_numbers(&mut self, known: u64) {
        let next = known.min(HIGHEST) + 1;
        if let Round::Forming(forming) = &mut self.round {
            if forming.number <= known {
                forming.number = forming.number.max(next);
            }
        } else if let Some(formed) = self.round.formed_mut()
            && formed.number < known
        {
            formed.next = formed.next.max(next);
        }
    }

    /// Records that an agent has left or is lost, so no recovery waits for it.
    pub(super) fn record_departure(&mut self, instance: u64) {
        if instance == 0 || self.is_undecided() {
            return;
        }
        let mut members = self.record.members.iter_mut();
        if let Some(member) = members.find(|member| **member == instance) {
            *member = 0;
            self.note();
        }
    }

    /// Returns the record of a round whose participants are missing.
    ///
    /// `None` without a search for them, or if the search began without a record.
    pub(in crate::coordinator) fn searched_record(&self) -> Option<RunNote> {
        self.round.search()?;
        let is_recorded = self.round.recovery().is_none_or(|it| it.is_recorded());
        is_recorded.then(|| self.record.clone())
    }

    /// Returns the record of a run without agents.
    pub(in crate::coordinator) fn final_record(&self) -> Option<RunNote> {
        // The agents may not have been in any round of this coordinator.
        let number = self.round.number();
        let last = if self.round.is_formed() {
            Some(number)
        } else {
            number.checked_sub(1)
        };
        let is_known = self.round.announced().is_some() || self.is_closed() || last.is_some();
        is_known.then(|| RunNote {
            round: self.record.round.max(last.unwrap_or(0)),
            closed: self.is_closed() && self.origin.rules.has(Rule::EndIsRecorded),
            ..RunNote::default()
        })
    }
}
