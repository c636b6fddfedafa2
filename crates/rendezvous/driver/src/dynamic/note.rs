//! Record of a coordinator, in memory that outlives its process.

use std::io;
use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::Authority;
use rdzv_rendezvous_proto::coordinator::{Note, RunNote};
use rustix::fs::MemfdFlags;

use crate::slots::Slots;

/// Record of a coordinator for its successor, in case it is killed.
///
/// The record lives as long as a process has it open. The process that restarts agents keeps it
/// open, and the agents inherit it.
#[derive(Debug)]
pub struct NoteFile {
    slots: Slots,
    note: Note,
}

impl NoteFile {
    /// Creates an empty record.
    ///
    /// Agents wait for the next coordinator for up to `timeout` after one has died.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no memory for the record.
    pub fn new(timeout: Duration) -> io::Result<Self> {
        Ok(Self::over(Slots::new(MemfdFlags::CLOEXEC)?, timeout))
    }

    /// Creates an empty record that will be written to these slots.
    pub(in crate::dynamic) fn over(slots: Slots, timeout: Duration) -> Self {
        Self {
            slots,
            note: Note::new(fastrand::u64(..), timeout),
        }
    }

    /// Reads the latest record, for the coordinator that follows its writer.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory cannot be read or written.
    pub fn reopen(&mut self) -> io::Result<()> {
        if let Some(note) = self.slots.read(Note::newest)? {
            self.note = note;
            self.note.authority.epoch += 1;
        }
        self.write()
    }

    pub(in crate::dynamic) fn note(&self) -> &Note {
        &self.note
    }

    /// Writes another record in place of this one.
    pub(super) fn replace(&mut self, note: Note) -> io::Result<()> {
        self.note = note;
        self.write()
    }

    /// Writes the members' addresses, for a process that is not a member.
    pub(super) fn keep_members(&mut self, addresses: Vec<String>) -> io::Result<()> {
        self.note.authority.cluster = 0;
        self.note.voters = addresses;
        self.write()
    }

    /// Writes the record of a run.
    pub(super) fn update(&mut self, run: String, note: Option<RunNote>) -> io::Result<()> {
        self.note.update(run, note);
        self.write()
    }

    pub(super) fn adopt(&mut self, authority: Authority) -> io::Result<()> {
        self.note.adopt(authority);
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        let note = &self.note;
        self.slots.write(|sequence| note.encode(sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_coordinator_finds_what_the_last_one_wrote() {
        let timeout = Duration::from_secs(60);
        let mut file = NoteFile::new(timeout).unwrap();
        file.reopen().unwrap();
        assert_eq!(file.note().authority.epoch, 0);
        let slots = file.slots.descriptors();
        let slots = slots.map(|slot| slot.try_clone_to_owned().unwrap());
        let mut of_keeper = NoteFile::over(Slots::of(slots), timeout);
        for round in [7, 8] {
            let note = RunNote {
                round,
                members: vec![1, 2],
                ..RunNote::default()
            };
            file.update("run".to_owned(), Some(note.clone())).unwrap();
            of_keeper.reopen().unwrap();
            assert_eq!(of_keeper.note().runs["run"], note);
            assert_eq!(
                of_keeper.note().authority.cluster,
                file.note().authority.cluster
            );
        }
        assert_eq!(of_keeper.note().authority.epoch, 1);
    }
}
