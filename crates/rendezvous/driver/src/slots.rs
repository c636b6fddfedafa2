//! Memory that outlives the process that writes it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::io::{pread, pwrite};

/// Maximum number of bytes to read.
///
/// The record of a round of a million nodes is 8 MB.
const LONGEST: usize = 64 << 20;

/// Two slots, written alternately, because a writer may die at any byte.
///
/// The memory lives as long as any process has the slots open.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: [OwnedFd; 2],
    sequence: u64,
}

impl Slots {
    /// Returns empty slots; `flags` are the flags of their descriptors.
    pub(crate) fn new(flags: MemfdFlags) -> io::Result<Self> {
        let slot = || memfd_create(c"rdzv-note", flags);
        Ok(Self {
            slots: [slot()?, slot()?],
            sequence: 0,
        })
    }

    /// Opens the slots of an earlier process.
    pub(crate) fn of(slots: [OwnedFd; 2]) -> Self {
        Self { slots, sequence: 0 }
    }

    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        self.slots.each_ref().map(AsFd::as_fd)
    }

    /// Reads the newest slot; `newest` picks it and returns its sequence number.
    pub(crate) fn read<T>(
        &mut self,
        newest: impl Fn([&[u8]; 2]) -> Option<(u64, T)>,
    ) -> io::Result<Option<T>> {
        let slots = [read(&self.slots[0])?, read(&self.slots[1])?];
        Ok(newest([&slots[0], &slots[1]]).map(|(sequence, content)| {
            self.sequence = sequence;
            content
        }))
    }

    /// Overwrites the older slot with the bytes from `encode`.
    pub(crate) fn write(&mut self, encode: impl Fn(u64) -> Vec<u8>) -> io::Result<()> {
        self.sequence += 1;
        let bytes = encode(self.sequence);
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
