//! Record that a coordinator leaves for its successor in case it is killed.
//!
//! Voters of a list replicate the record in memory. Otherwise it lives outside the coordinator's
//! process, in two slots that are written alternately, because a writer may die at any byte. The
//! coordinator writes the record before it notifies any agent of its content. So a coordinator that
//! starts with the record knows the last announced round of each run.
//!
//! ```text
//!   content   cluster: u64, epoch: u32, timeout ms u64, flags: u8, two u64, address,
//!             voters: u8 count, per voter its address: u32 length and bytes, and per run
//!             run: u32 length and bytes, round: u64, flags: u8, members: u32 count of u64,
//!             with the flag 4: lease ms u32
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use super::wire::Authority;
use crate::field::write;
use crate::slot::{self, Bytes};

/// Member that left after success.
///
/// It replaces the instance in [`RunNote::members`].
pub const LEFT_AFTER_SUCCESS: u64 = u64::MAX;

/// Record with which a coordinator starts after its predecessor has died.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Note {
    /// The authority of the coordinator.
    pub authority: Authority,
    /// `true` if an earlier coordinator has left no record.
    ///
    /// Runs may have had rounds that are not recorded here.
    pub is_partial: bool,
    /// `host:port` of the other voters, or of possible members of a group.
    ///
    /// If the list is not empty, the next process here must not continue alone.
    pub voters: Vec<String>,
    /// `host:port` of the voter in the process, if there is one.
    pub address: String,
    /// Number that orders the logs of the cluster, and an index in the current log.
    pub applied: (u64, u64),
    /// `true` if the process was a voter of that group.
    pub votes: bool,
    /// Records of the runs, by their ids.
    pub runs: BTreeMap<String, RunNote>,
}

/// Record of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunNote {
    /// The last round that was announced.
    pub round: u64,
    /// Instances of the agents of its participants, by rank.
    ///
    /// An entry is 0 if its participant has left the run or was lost. In a silent round, the lost
    /// participants keep their entries. The list is empty unless all participants can reattach.
    pub members: Vec<u64>,
    /// `true` if the run is over.
    pub closed: bool,
    /// `true` if all workers of the round have succeeded.
    pub succeeded: bool,
    /// The lease of its participants; zero unless all of them have one.
    pub lease: Duration,
    /// `true` if a participant will certainly never run the round's workers again.
    pub torn: bool,
    /// `true` if all participants were lost by silence and no later round forms.
    pub silent: bool,
    /// `true` if a later round may have been announced without a record.
    ///
    /// The coordinator ignores such a record.
    pub outdated: bool,
}

impl Note {
    /// Creates the first record of a cluster.
    pub fn new(cluster: u64, timeout: Duration) -> Self {
        let authority = Authority {
            cluster,
            timeout,
            ..Authority::default()
        };
        Self {
            authority,
            ..Self::default()
        }
    }

    /// Adopts the authority of a coordinator whose predecessor left no record.
    pub fn adopt(&mut self, authority: Authority) {
        self.authority = authority;
        self.is_partial = true;
    }

    /// Stores a coordinator's record of a run; `None` removes the run.
    pub fn update(&mut self, run: String, note: Option<RunNote>) {
        match note {
            Some(note) => drop(self.runs.insert(run, note)),
            None => drop(self.runs.remove(&run)),
        }
    }

    /// Returns the bytes of a slot.
    pub fn encode(&self, sequence: u64) -> Vec<u8> {
        let authority = &self.authority;
        let mut content = Vec::new();
        let flags = slot::flags([self.is_partial, authority.takes_voters, self.votes]);
        write(&mut content, &[&authority.cluster, &authority.epoch]);
        write(&mut content, &[&authority.timeout, &flags]);
        write(&mut content, &[&self.applied.0, &self.applied.1]);
        write_name(&self.address, &mut content);
        let voters = &self.voters[..self.voters.len().min(usize::from(u8::MAX))];
        content.push(voters.len() as u8);
        voters.iter().for_each(|it| write_name(it, &mut content));
        write_runs(&self.runs, &mut content);
        slot::encode(sequence, &content)
    }

    /// Returns the record in the newest complete slot, and its sequence number.
    ///
    /// `None` if no slot is complete. Bytes after the content of a slot are ignored.
    pub fn newest(slots: [&[u8]; 2]) -> Option<(u64, Self)> {
        slot::newest(slots, Self::read)
    }

    fn read(mut bytes: Bytes<'_>) -> Option<Self> {
        let (cluster, epoch) = (bytes.u64()?, bytes.u32()?);
        let timeout = Duration::from_millis(bytes.u64()?);
        let [is_partial, takes_voters, votes] = slot::read_flags(bytes.u8()?);
        let applied = (bytes.u64()?, bytes.u64()?);
        let address = read_name(&mut bytes)?;
        let count = bytes.u8()?;
        let voters = (0..count).map(|_| read_name(&mut bytes));
        Some(Self {
            authority: Authority {
                cluster,
                epoch,
                timeout,
                takes_voters,
                in_process: false,
            },
            is_partial,
            voters: voters.collect::<Option<_>>()?,
            address,
            applied,
            votes,
            runs: read_runs(bytes)?,
        })
    }
}

impl RunNote {
    /// `true` if agents that hold the run's last round may reattach.
    pub(super) fn is_held(&self) -> bool {
        !self.closed && !self.expected().is_empty()
    }

    /// `true` if no participant is missing; `present` participants may run workers.
    pub(super) fn is_whole(&self, present: usize) -> bool {
        present + self.left_after_success() == self.members.len()
    }

    /// Returns the number of participants that left after success.
    pub(super) fn left_after_success(&self) -> usize {
        let members = self.members.iter();
        let left = members.filter(|member| **member == LEFT_AFTER_SUCCESS);
        left.count()
    }

    /// Returns the rank and instance of each participant that may reattach.
    pub(super) fn expected(&self) -> BTreeMap<u32, u64> {
        let members = (0..).zip(self.members.iter().copied());
        let may = |instance: u64| instance != 0 && instance != LEFT_AFTER_SUCCESS;
        members.filter(|(_, instance)| may(*instance)).collect()
    }

    /// Writes the record of a run.
    pub fn write(&self, out: &mut Vec<u8>) {
        let is_fenced = !self.lease.is_zero();
        let flags = slot::flags([
            self.closed,
            self.succeeded,
            is_fenced,
            self.torn,
            self.silent,
            self.outdated,
        ]);
        write(out, &[&self.round, &flags]);
        slot::write_numbers(&self.members, out);
        if is_fenced {
            let lease = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
            write(out, &[&lease]);
        }
    }

    /// Reads the output of [`RunNote::write`]; `None` if it is truncated.
    pub fn read(bytes: &mut Bytes<'_>) -> Option<Self> {
        let round = bytes.u64()?;
        let flags = slot::read_flags(bytes.u8()?);
        let [closed, succeeded, is_fenced, torn, silent, outdated] = flags;
        Some(Self {
            round,
            members: bytes.numbers()?,
            closed,
            succeeded,
            lease: if is_fenced {
                Duration::from_millis(u64::from(bytes.u32()?))
            } else {
                Duration::ZERO
            },
            torn,
            silent,
            outdated,
        })
    }
}

/// Writes the id of a run, or an address, with its length in front.
pub fn write_name(run: &str, out: &mut Vec<u8>) {
    write(out, &[&(run.len() as u32)]);
    out.extend_from_slice(run.as_bytes());
}

/// Reads the output of [`write_name`].
pub fn read_name(bytes: &mut Bytes<'_>) -> Option<String> {
    let length = bytes.u32()? as usize;
    Some(std::str::from_utf8(bytes.take(length)?).ok()?.to_owned())
}

/// Writes all runs of a record.
pub fn write_runs(runs: &BTreeMap<String, RunNote>, out: &mut Vec<u8>) {
    for (run, note) in runs {
        write_name(run, out);
        note.write(out);
    }
}

/// Reads the output of [`write_runs`], up to the end.
pub fn read_runs(mut bytes: Bytes<'_>) -> Option<BTreeMap<String, RunNote>> {
    let mut runs = BTreeMap::new();
    while !bytes.0.is_empty() {
        let run = read_name(&mut bytes)?;
        runs.insert(run, RunNote::read(&mut bytes)?);
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(rounds: u64) -> Note {
        let mut note = Note::new(7, Duration::from_secs(60));
        (note.applied, note.votes) = ((rounds, 7), rounds > 1);
        note.address = "n0:29400".to_owned();
        note.voters = (0..rounds).map(|at| format!("n{at}:29400")).collect();
        for round in 0..rounds {
            let run = RunNote {
                round,
                members: (0..round).collect(),
                closed: round % 2 == 1,
                succeeded: round % 3 == 0,
                lease: Duration::from_millis(round % 2 * 3001),
                torn: round % 4 == 0,
                silent: round % 4 == 2,
                outdated: round % 5 == 1,
            };
            note.update(format!("run-{round}"), Some(run));
        }
        note
    }

    #[test]
    fn a_note_reads_as_it_was_written() {
        for rounds in [0, 1, 5] {
            let (slot, expected) = (note(rounds).encode(4), note(rounds));
            assert_eq!(Note::newest([&slot, &[]]), Some((4, expected)));
        }
        assert_eq!(Note::newest([&[], &[]]), None);
    }

    #[test]
    fn wherever_its_writer_dies_the_note_of_before_is_left() {
        let (old, new) = (note(5), note(4));
        let (before, after) = (old.encode(9), new.encode(10));
        for written in 0..=after.len() {
            // The slot holds the record that was written two times before.
            let mut slot = note(6).encode(8);
            slot[..written].copy_from_slice(&after[..written]);
            let (sequence, read) = Note::newest([&before, &slot]).unwrap();
            match sequence {
                9 => assert_eq!(read, old),
                10 => assert_eq!(read, new, "{written}"),
                other => panic!("a note with sequence {other}"),
            }
        }
    }

    #[test]
    fn a_run_is_forgotten() {
        let mut note = note(2);
        note.update("run-1".to_owned(), None);
        assert_eq!(note.runs.keys().collect::<Vec<_>>(), ["run-0"]);
    }
}
