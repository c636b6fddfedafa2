//! The note of a coordinator, in memory that outlives its process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::{Note, RunNote};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::io::{pread, pwrite};

/// Longest note that is read. One of a round of a million nodes is 8 MB.
const LONGEST: usize = 64 << 20;

/// The note of a coordinator for the next one, in case it is killed: two slots in memory, which are written in turn. They
/// live as long as a process has them open; so the process that starts coordinators opens them, and
/// gives each of its children a clone.
#[derive(Debug)]
pub struct NoteFile {
    slots: [OwnedFd; 2],
    sequence: u64,
    note: Note,
}

impl NoteFile {
    /// A note in which nothing stands yet.
    ///
    /// `timeout` is for how long agents wait for the next coordinator when one has died.
    ///
    /// # Errors
    ///
    /// If the system has no memory for it.
    pub fn new(timeout: Duration) -> io::Result<Self> {
        let slot = || memfd_create(c"rdzv-note", MemfdFlags::CLOEXEC);
        Ok(Self {
            slots: [slot()?, slot()?],
            sequence: 0,
            note: Note::new(fastrand::u64(..), timeout),
        })
    }

    /// Reads what the process has left that wrote last, for the coordinator that follows it.
    ///
    /// # Errors
    ///
    /// If the memory cannot be read or written.
    pub fn reopen(&mut self) -> io::Result<()> {
        let slots = [read(&self.slots[0])?, read(&self.slots[1])?];
        if let Some((sequence, note)) = Note::newest([&slots[0], &slots[1]]) {
            (self.sequence, self.note) = (sequence, note);
            self.note.authority.epoch += 1;
        }
        self.write()
    }

    /// Its content.
    pub(super) fn note(&self) -> &Note {
        &self.note
    }

    /// Writes what is to be known of a run.
    pub(super) fn update(&mut self, run: String, note: Option<RunNote>) -> io::Result<()> {
        self.note.update(run, note);
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        self.sequence += 1;
        let bytes = self.note.encode(self.sequence);
        let slot = &self.slots[usize::from(self.sequence % 2 == 1)];
        let mut written = 0;
        while written < bytes.len() {
            written += pwrite(slot, &bytes[written..], written as u64)?;
        }
        Ok(())
    }
}

fn read(slot: &OwnedFd) -> io::Result<Vec<u8>> {
    let length = usize::try_from(fstat(slot)?.st_size).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length.min(LONGEST)];
    let mut filled = 0;
    while filled < bytes.len() {
        match pread(slot, &mut bytes[filled..], filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_coordinator_finds_what_the_last_one_wrote() {
        let mut file = NoteFile::new(Duration::from_secs(60)).unwrap();
        file.reopen().unwrap();
        assert_eq!(file.note().authority.epoch, 0);
        let slots = file.slots.each_ref().map(|slot| slot.try_clone().unwrap());
        let mut of_keeper = NoteFile {
            slots,
            sequence: 0,
            note: file.note.clone(),
        };
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
