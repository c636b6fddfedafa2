//! Rounds of which all participants are silent: nobody knows whether their workers run.
//!
//! A round is *torn* when one of its participants certainly never runs workers of it again. The next one forms when nobody
//! is left in it, and it is torn:
//!
//! | what is known of a participant | torn |
//! |---|---|
//! | it has left or joined again, as it has said itself | yes |
//! | its workers have succeeded | yes |
//! | another agent was started in its place, or its launcher has taken it out | yes |
//! | its process has certainly ended, as the end of its connection proves (`end.rs`) | yes |
//! | it is lost: nothing is heard of it, or its connection broke and it did not come back | no |
//!
//! If all are lost and it is not torn, they may be cut off together and still run the round. With spares, a whole other one could
//! run beside it. So the coordinator waits until one of them is heard of, and says for whom:
//!
//! * One that comes back and holds the round learns that it is over, because the others have been told so. It counts as a participant
//!   again until it leaves by its own word: only then its workers have ended.
//! * One that holds it no more tears it.
//! * People can say that they are gone for good.
//!
//! The note says it too, so that the next coordinator waits for the same agents. One is enough for it, not more than half: no other
//! round forms before that one has left. Where agents have a fence, silent workers stand still, and nobody waits.

use std::collections::BTreeMap;
use std::time::Duration;

use super::recovery::Recovery;
use super::{Effect, Run};
use crate::NodeDesc;
use crate::coordinator::wire::HeldRound;
use crate::mutant::{Mutant, is_broken};
use rdzv_core::escape::escape;
use rdzv_core::machine::Outbox;
use rdzv_core::time::Now;

/// Time until people are told: agents that were only killed are started again sooner.
const SAY_AFTER: Duration = Duration::from_millis(400);

/// A participant of which nothing is heard.
#[derive(Debug, Clone)]
pub(super) struct Silent {
    instance: u64,
    /// Its host, if it is known.
    host: String,
}

impl Run {
    /// Whether the last round may still run, whole, if nothing is heard of any of its participants.
    fn may_be_whole(&self) -> bool {
        let is_torn = self.note.torn || self.note.succeeded;
        self.is_recoverable()
            && !is_torn
            && self.fence().is_zero()
            && !is_broken(Mutant::SilenceEndsRounds)
    }

    /// A participant leaves the round, and its workers have ended.
    pub(super) fn leaves_round(&mut self, node: &NodeDesc) {
        self.note.torn |= self.state.complete && self.state.participants.contains_key(node);
    }

    /// An agent that was lost is heard of without the round, or has certainly ended.
    pub(super) fn speaks(&mut self, instance: u64) {
        let mut silent = self.silent.values();
        self.note.torn |= silent.any(|silent| silent.instance == instance);
    }

    /// A participant is about to be lost because nothing is heard of it.
    pub(super) fn falls_silent(&mut self, node: &NodeDesc, out: &mut Outbox<Effect>) {
        let rank = self.state.participants.get(node).copied();
        let is_noted = self.recovery.as_ref().is_none_or(Recovery::is_noted);
        let (Some(rank), Some(agent)) = (rank, self.agents.get(node)) else {
            return;
        };
        if !self.state.complete || self.note.round != self.state.round || !is_noted {
            return;
        }
        self.note.torn |= self.succeeded.contains(node);
        let silent = Silent {
            instance: agent.instance,
            host: escape(&node.addr),
        };
        self.silent.insert(rank, silent);
        if self.state.participants.len() == 1 && self.may_be_whole() {
            let missing = std::mem::take(&mut self.missing);
            self.keep_silent(&missing);
            self.note_silence(out);
        }
    }

    /// These were waited for, and nothing was heard of them.
    pub(super) fn keep_silent(&mut self, missing: &BTreeMap<u32, u64>) {
        for (rank, instance) in missing {
            let silent = self.silent.entry(*rank);
            silent.or_insert_with(|| Silent {
                instance: *instance,
                host: String::new(),
            });
        }
    }

    /// Nobody of the round is left, and it may be whole. The next coordinator knows that before anything follows from it.
    pub(super) fn note_silence(&mut self, out: &mut Outbox<Effect>) {
        for (rank, silent) in &self.silent {
            if let Some(member) = self.note.members.get_mut(*rank as usize) {
                *member = silent.instance;
            }
        }
        self.note.silent = true;
        out.push(Effect::Note(self.note.clone()));
    }

    /// Waits until one of them is heard of.
    pub(super) fn await_word(&mut self, now: Now) {
        let silent = self.silent.iter();
        self.missing = silent
            .map(|(rank, silent)| (*rank, silent.instance))
            .collect();
        self.recovery = Some(Recovery {
            began: now.mono,
            window_ends: Some(now.mono),
            at: now.mono + SAY_AFTER,
            say_at: now.mono + SAY_AFTER,
            over: Vec::new(),
            is_silent: true,
            elsewhere: None,
        });
    }

    /// Begins with a note that says it.
    pub(super) fn recover_silent(&mut self, now: Now) {
        let members = (0..).zip(&self.note.members);
        let missing = members.filter(|(_, instance)| **instance != 0);
        let missing = missing.map(|(rank, instance)| (rank, *instance)).collect();
        self.keep_silent(&missing);
        self.state.complete = true;
        self.change_announced = true;
        self.await_word(now);
    }

    /// Whether nobody holds the round at the end of its recovery, where these are missing, and it may be whole.
    pub(super) fn all_are_silent(&mut self, missing: &BTreeMap<u32, u64>) -> bool {
        let is_silent = self.state.participants.is_empty() && self.may_be_whole() && !self.recovers;
        if is_silent {
            self.keep_silent(missing);
        }
        is_silent && !self.silent.is_empty()
    }

    /// Whether an agent that holds the round was in it, though no note has its instance any more: a coordinator
    /// before has lost it.
    pub(super) fn was_silent(&self, held: &HeldRound) -> bool {
        let recovery = self.recovery.as_ref();
        let member = self.note.members.get(held.rank as usize);
        recovery.is_some_and(|recovery| recovery.is_silent) && member == Some(&0)
    }

    /// An agent that waits says which round it was in last. No note need have its instance.
    pub(super) fn has_left(&mut self, node: &NodeDesc, left: &HeldRound) {
        if let Some(recovery) = &mut self.recovery
            && recovery.is_silent
            && self.note.round == left.round
        {
            self.note.torn = true;
            recovery.over.push(format!("node {node} joins again"));
            self.former.insert(node.clone());
        }
    }

    /// The hosts of the silent participants, as far as they are known, if the next round waits for one of them.
    pub(super) fn silent_hosts(&self) -> Option<BTreeMap<u32, String>> {
        let recovery = self.recovery.as_ref().filter(|recovery| recovery.is_silent);
        recovery.map(|_| {
            let silent = self.silent.iter();
            let known = silent.filter(|(_, silent)| !silent.host.is_empty());
            known
                .map(|(rank, silent)| (*rank, silent.host.clone()))
                .collect()
        })
    }
}
