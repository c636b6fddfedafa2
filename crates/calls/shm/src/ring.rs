//! A stream of bytes in one direction, through memory that two processes share.
//!
//! ```text
//!   0     how many bytes were ever written   (u64, the producer's)
//!   128   how many bytes were ever read      (u64, the consumer's)
//!   256   the consumer sleeps                (u32)
//!   384   the producer sleeps                (u32)
//!   4096  the bytes; byte n of the stream is at n modulo the capacity
//! ```
//!
//! Each side owns one position: it keeps the true one to itself and only publishes it, so what the
//! peer writes over it does no harm. The position of the other side is compared with it at every
//! look: what lies between them can never be more than the capacity.
//!
//! A producer that finds the ring full and sleeps is woken up when half of it is free, not for each
//! byte.
#![expect(
    unsafe_code,
    reason = "bytes that another process writes can only be reached by raw pointers"
)]

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::copy_nonoverlapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::doorbell::Doorbell;
use crate::error::{Result, ShmError};
use crate::sealed::Memory;
use crate::sleeping::{announce, must_wake, rise};

const WRITTEN: usize = 0;
const READ: usize = 128;
const CONSUMER_SLEEPS: usize = 256;
const PRODUCER_SLEEPS: usize = 384;
const BYTES: usize = 4096;

/// The smallest and the largest ring; its capacity is a power of two.
pub(crate) const SMALLEST: usize = 4096;
pub(crate) const LARGEST: usize = 64 << 20;

/// The most bytes that are copied before the other side hears of it, so that both can copy at once.
const STEP: usize = 64 << 10;

/// Where a ring lies in memory.
#[derive(Debug, Clone)]
pub(crate) struct RingLayout {
    memory: Arc<Memory>,
    /// Of its first byte; a multiple of the page size.
    offset: usize,
    /// A power of two.
    capacity: usize,
}

impl RingLayout {
    /// How much memory a ring takes.
    pub(crate) fn length(capacity: usize) -> usize {
        BYTES + capacity
    }

    /// The ring of this capacity that begins there.
    ///
    /// All of it must be in the memory.
    pub(crate) fn new(memory: Arc<Memory>, offset: usize, capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && (SMALLEST..=LARGEST).contains(&capacity));
        assert!(offset.is_multiple_of(BYTES));
        assert!(offset + Self::length(capacity) <= memory.length());
        Self {
            memory,
            offset,
            capacity,
        }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= Self::length(self.capacity));
        // SAFETY: `new` has compared the end of the ring with the end of the mapping, which lives
        // as long as `self`, and no caller asks for more than that end.
        unsafe { self.memory.start().add(self.offset + offset) }
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: mapped for as long as `self` lives, aligned since mappings and rings begin at
        // pages and the offsets are multiples of 128, and accessed by atomics only, on both sides.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    fn flag(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }

    /// The piece of the ring that holds byte `position` of the stream and what follows it, of at
    /// most `length` bytes. Its end is never behind the end of the ring, whatever the arguments
    /// are.
    fn piece(&self, position: u64, length: usize) -> (*mut u8, usize) {
        let at = (position & (self.capacity as u64 - 1)) as usize;
        (self.at(BYTES + at), length.min(self.capacity - at))
    }

    /// How many bytes are in the ring by these positions.
    fn used(&self, written: u64, read: u64) -> Result<usize> {
        let used = written.wrapping_sub(read);
        if used > self.capacity as u64 {
            return Err(ShmError::Broken {
                claimed: used,
                capacity: self.capacity as u64,
            });
        }
        Ok(used as usize)
    }
}

/// The end of a ring that writes.
#[derive(Debug)]
pub struct Producer {
    layout: RingLayout,
    written: u64,
    /// As it was when last looked at.
    read: u64,
    /// What the consumer sleeps on.
    data: Doorbell,
    /// What this side sleeps on.
    space: Doorbell,
    /// It has said that it sleeps.
    announced: bool,
}

impl Producer {
    pub(crate) fn new(layout: RingLayout, data: Doorbell, space: Doorbell) -> Self {
        Self {
            layout,
            written: 0,
            read: 0,
            data,
            space,
            announced: false,
        }
    }

    /// Writes as much of the parts, one after the other, as there is space for, and says how much
    /// that was: 0 if the ring is full. Wakes the consumer up if it sleeps. Never waits, and ends a
    /// sleep that was announced, as [`Producer::awake`] does.
    ///
    /// # Errors
    ///
    /// [`ShmError::Broken`] if the peer has written nonsense into the ring.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        self.rise();
        let before = self.written;
        let mut published = before;
        'full: for part in parts {
            let mut part: &[u8] = part;
            while !part.is_empty() {
                let space = self.space_for(part.len().min(STEP))?;
                if space == 0 {
                    break 'full;
                }
                let (now, later) = part.split_at(part.len().min(space).min(STEP));
                self.copy(now);
                part = later;
                if self.written.wrapping_sub(published) >= STEP as u64 {
                    published = self.publish()?;
                }
            }
        }
        if self.written != published {
            self.publish()?;
        }
        Ok(self.written.wrapping_sub(before) as usize)
    }

    /// How many bytes can be written now.
    ///
    /// # Errors
    ///
    /// [`ShmError::Broken`] if the peer has written nonsense into the ring.
    pub fn space(&mut self) -> Result<usize> {
        let read = self.layout.position(READ).load(Ordering::Acquire);
        let used = self.layout.used(self.written, read)?;
        self.read = read;
        Ok(self.layout.capacity - used)
    }

    /// Says that this side is going to sleep until there is space in at least half of the ring.
    /// False: it need not sleep, or must not, since the peer broke the ring and the next write says
    /// so.
    ///
    /// After true, wait for [`Producer::doorbell`] to become readable, and call [`Producer::awake`]
    /// then.
    pub fn prepare_to_sleep(&mut self) -> bool {
        let layout = &self.layout;
        self.announced = true;
        let sleeps = announce(layout.flag(PRODUCER_SLEEPS), || {
            let read = layout.position(READ).load(Ordering::Acquire);
            let used = layout.used(self.written, read);
            used.is_ok_and(|used| used > layout.capacity / 2)
        });
        if !sleeps {
            self.rise();
        }
        sleeps
    }

    /// Says that this side is awake, and makes its doorbell quiet.
    ///
    /// For whoever was told to sleep, whether the doorbell has rung or something else came first.
    pub fn awake(&mut self) {
        self.announced = false;
        rise(self.layout.flag(PRODUCER_SLEEPS));
        self.space.clear();
    }

    /// Who writes does not sleep, said or not: the peer need not ring, and if it has, nobody need
    /// hear it.
    fn rise(&mut self) {
        if self.announced {
            self.announced = false;
            if rise(self.layout.flag(PRODUCER_SLEEPS)) {
                self.space.clear();
            }
        }
    }

    /// What becomes readable when there is space; for `poll` and `epoll`.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.space.as_fd()
    }

    /// Looks for space only if what was last seen is too little.
    fn space_for(&mut self, wanted: usize) -> Result<usize> {
        let space = self.layout.capacity - self.layout.used(self.written, self.read)?;
        if space >= wanted {
            return Ok(space);
        }
        self.space()
    }

    /// There must be space for them.
    fn copy(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (to, length) = self.layout.piece(self.written, bytes.len());
            // SAFETY: the piece has `length` bytes within the ring, the source at least as many.
            // They do not overlap: nothing has a reference into the ring. If the peer reads or
            // writes there against the protocol, bytes are wrong and nothing else is.
            unsafe { copy_nonoverlapping(bytes.as_ptr(), to, length) };
            self.written = self.written.wrapping_add(length as u64);
            bytes = &bytes[length..];
        }
    }

    fn publish(&self) -> Result<u64> {
        let written = self.layout.position(WRITTEN);
        written.store(self.written, Ordering::Release);
        if must_wake(self.layout.flag(CONSUMER_SLEEPS)) {
            self.data.signal()?;
        }
        Ok(self.written)
    }
}

/// The end of a ring that reads.
#[derive(Debug)]
pub struct Consumer {
    layout: RingLayout,
    read: u64,
    /// As it was when last looked at.
    written: u64,
    /// What this side sleeps on.
    data: Doorbell,
    /// What the producer sleeps on.
    space: Doorbell,
    /// It has said that it sleeps.
    announced: bool,
    /// `true` if the doorbell may have rung since it was last made quiet.
    ///
    /// That can wait until the next sleep: what rang it is here, and comes first.
    rung: bool,
}

impl Consumer {
    pub(crate) fn new(layout: RingLayout, data: Doorbell, space: Doorbell) -> Self {
        Self {
            layout,
            read: 0,
            written: 0,
            data,
            space,
            announced: false,
            rung: false,
        }
    }

    /// Reads as much as there is and fits, and says how much that was: 0 if the ring is empty.
    /// Wakes the producer up if it sleeps and half of the ring is free. Never waits, and ends a
    /// sleep that was announced, as [`Consumer::awake`] does.
    ///
    /// # Errors
    ///
    /// [`ShmError::Broken`] if the peer has written nonsense into the ring.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.rise();
        let mut done = 0;
        while done < into.len() {
            let wanted = (into.len() - done).min(STEP);
            let mut there = self.layout.used(self.written, self.read)?;
            if there < wanted {
                there = self.available()?;
            }
            if there == 0 {
                break;
            }
            let length = there.min(wanted);
            self.copy(&mut into[done..done + length]);
            done += length;
            self.publish()?;
        }
        Ok(done)
    }

    /// How many bytes can be read now. Cheap enough to look for again and again.
    ///
    /// # Errors
    ///
    /// [`ShmError::Broken`] if the peer has written nonsense into the ring.
    pub fn available(&mut self) -> Result<usize> {
        let written = self.layout.position(WRITTEN).load(Ordering::Acquire);
        let used = self.layout.used(written, self.read)?;
        self.written = written;
        Ok(used)
    }

    /// Says that this side is going to sleep until there is something to read.
    ///
    /// False: there is already, or the peer broke the ring and the next read says so.
    ///
    /// After true, wait for [`Consumer::doorbell`] to become readable, and call [`Consumer::awake`]
    /// then.
    pub fn prepare_to_sleep(&mut self) -> bool {
        if std::mem::take(&mut self.rung) {
            self.data.clear();
        }
        let layout = &self.layout;
        self.announced = true;
        let sleeps = announce(layout.flag(CONSUMER_SLEEPS), || {
            layout.position(WRITTEN).load(Ordering::Acquire) == self.read
        });
        if !sleeps {
            self.rise();
        }
        sleeps
    }

    /// Says that this side is awake, after a sleep that was announced, whether the doorbell has
    /// rung or something else came first. The doorbell stays readable until the next
    /// [`Consumer::prepare_to_sleep`].
    pub fn awake(&mut self) {
        self.announced = false;
        rise(self.layout.flag(CONSUMER_SLEEPS));
        self.rung = true;
    }

    /// Who reads does not sleep, said or not: the peer need not ring, and if it has, nobody need
    /// hear it.
    fn rise(&mut self) {
        if self.announced {
            self.announced = false;
            self.rung |= rise(self.layout.flag(CONSUMER_SLEEPS));
        }
    }

    /// What becomes readable when there is something to read; for `poll` and `epoll`.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.data.as_fd()
    }

    /// There must be as many bytes.
    fn copy(&mut self, mut into: &mut [u8]) {
        while !into.is_empty() {
            let (from, length) = self.layout.piece(self.read, into.len());
            // SAFETY: the piece has `length` bytes within the ring, the target at least as many.
            // They do not overlap: nothing has a reference into the ring. If the peer writes there
            // against the protocol, the copied bytes are wrong, and all values of bytes are valid.
            unsafe { copy_nonoverlapping(from, into.as_mut_ptr(), length) };
            self.read = self.read.wrapping_add(length as u64);
            into = &mut into[length..];
        }
    }

    fn publish(&self) -> Result<()> {
        let read = self.layout.position(READ);
        read.store(self.read, Ordering::Release);
        let used = self.layout.used(self.written, self.read)?;
        if used <= self.layout.capacity / 2 && must_wake(self.layout.flag(PRODUCER_SLEEPS)) {
            self.space.signal()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
