//! Invariants that hold after every step.

use std::collections::BTreeMap;

use rdzv_consensus::{Configuration, VoterId};
use rdzv_core::time::Now;

use crate::{Result, broken};

/// Knowledge about the whole group.
#[derive(Debug, Default)]
pub struct Ledger {
    leaders: BTreeMap<u64, VoterId>,
    /// Entries that at least one member knows to be committed.
    committed: BTreeMap<u64, Committed>,
    /// Commands, with their times.
    commands: BTreeMap<u64, (Vec<u8>, Now)>,
    /// State and configuration after each index.
    states: BTreeMap<u64, (u64, Configuration)>,
    /// Times at which entries were proposed, by index and term.
    proposed: BTreeMap<(u64, u64), u64>,
}

#[derive(Debug, Clone, Copy)]
struct Committed {
    term: u64,
    /// Lowest term of the members that knew the commit.
    ///
    /// The leader that committed the entry is the first to know.
    known_in: u64,
}

impl Ledger {
    /// Records the leader of a term: INV-Q1.
    ///
    /// Returns `true` if the term had no leader before.
    pub fn leads(&mut self, term: u64, leader: VoterId) -> Result<bool> {
        match self.leaders.insert(term, leader) {
            Some(other) if other != leader => {
                broken(format!("INV-Q1: {other} and {leader} lead in term {term}"))
            }
            other => Ok(other.is_none()),
        }
    }

    /// `true` if a later term has, or has had, a leader.
    pub fn is_over(&self, term: u64) -> bool {
        self.leaders.range(term + 1..).next().is_some()
    }

    /// Returns the number of terms with a leader.
    pub fn terms(&self) -> usize {
        self.leaders.len()
    }

    /// Records a committed entry: INV-Q2.
    ///
    /// The member `who`, in term `known_in`, knows the commit.
    pub fn commits(&mut self, who: VoterId, index: u64, term: u64, known_in: u64) -> Result {
        let known = self.committed.entry(index);
        let known = known.or_insert(Committed { term, known_in });
        known.known_in = known.known_in.min(known_in);
        if known.term != term {
            return broken(format!(
                "INV-Q2: entry {index} is committed with term {}, and at {who} with term {term}",
                known.term
            ));
        }
        Ok(())
    }

    /// Checks that a new leader has the entries committed in earlier terms: INV-Q2.
    ///
    /// Of these entries, the last 300 are checked.
    ///
    /// The term of a leader may be over already, because its votes took long. Such a leader need
    /// not have the entries of later terms: it no longer commits anything.
    pub fn has_all(
        &self,
        leader: VoterId,
        leads_in: u64,
        last: u64,
        term_at: impl Fn(u64) -> Option<u64>,
    ) -> Result {
        let committed = self.committed.iter().rev();
        let earlier = committed.filter(|(_, entry)| entry.known_in < leads_in);
        for (index, Committed { term, .. }) in earlier.take(300) {
            let has = term_at(*index);
            if *index > last || has.is_some_and(|has| has != *term) {
                return broken(format!(
                    "INV-Q2: {leader} leads in term {leads_in} without entry {index} of term {term}, and has {has:?}"
                ));
            }
        }
        Ok(())
    }

    /// Records the proposal of an entry.
    pub fn proposes(&mut self, index: u64, term: u64, now: u64) {
        self.proposed.entry((index, term)).or_insert(now);
    }

    /// Checks an applied command: INV-Q3, and INV-Q6 for its time.
    pub fn applies(
        &mut self,
        who: VoterId,
        index: u64,
        term: Option<u64>,
        at: Now,
        command: &[u8],
    ) -> Result {
        if let Some((known, known_at)) = self.commands.get(&index) {
            if known != command || *known_at != at {
                return broken(format!(
                    "INV-Q3: command {index} is another one at {who}: {command:?} at {at:?}, not {known:?} at {known_at:?}"
                ));
            }
            return Ok(());
        }
        let term = term.or_else(|| self.committed.get(&index).map(|entry| entry.term));
        let proposed = |index: u64, term: Option<u64>| self.proposed.get(&(index, term?)).copied();
        if let Some((before, (_, earlier))) = self.commands.range(..index).next_back() {
            if at.mono < earlier.mono || at.wall < earlier.wall {
                return broken(format!(
                    "INV-Q6: command {index} is of {at:?}, earlier than {before} of {earlier:?}"
                ));
            }
            let times = (
                proposed(*before, self.committed.get(before).map(|entry| entry.term)),
                proposed(index, term),
            );
            if let (Some(began), Some(ended)) = times {
                let passed = ended.saturating_sub(began) as f64 * 1.051 + 1_000_000.0;
                if (at.mono - earlier.mono).as_nanos() as f64 > passed {
                    return broken(format!(
                        "INV-Q6: {:?} went by between commands {before} and {index}, which {} ns separate",
                        at.mono - earlier.mono,
                        ended - began
                    ));
                }
            }
        }
        self.commands.insert(index, (command.to_vec(), at));
        Ok(())
    }

    /// Checks the state after an index: INV-Q3.
    pub fn state(
        &mut self,
        who: VoterId,
        index: u64,
        digest: u64,
        configuration: &Configuration,
    ) -> Result {
        let state = (digest, configuration.clone());
        match self.states.get(&index) {
            Some(other) if *other != state => broken(format!(
                "INV-Q3: after {index}, {who} has {state:?}, and another one {other:?}"
            )),
            Some(_) => Ok(()),
            None => {
                self.states.insert(index, state);
                Ok(())
            }
        }
    }

    /// Returns a digest of the committed states and the leaders.
    pub fn digest(&self) -> u64 {
        let states = self.states.iter();
        let leaders = self.leaders.iter();
        let numbers = states
            .flat_map(|(index, (digest, it))| [*index, *digest, it.voters.len() as u64])
            .chain(leaders.flat_map(|(term, leader)| [*term, leader.number()]));
        numbers.fold(0xcbf2_9ce4_8422_2325, |hash, number| {
            (hash ^ number)
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(17)
        })
    }
}
