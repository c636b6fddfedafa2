//! Stream of bytes in one direction, through memory that two processes share.
//!
//! ```text
//!   0     number of all bytes written until now  (u64, of the producer)
//!   128   number of all bytes read until now     (u64, of the consumer)
//!   256   1 while the consumer sleeps            (u32)
//!   384   1 while the producer sleeps            (u32)
//!   4096  the bytes; byte n of the stream is at n modulo the capacity
//! ```
//!
//! Each side owns one position. It keeps the true position in private memory and publishes a copy,
//! so a peer that overwrites the copy does no harm. At every poll, each side compares the position
//! of the other side with its own. A distance above the capacity is an error.
//!
//! A producer that sleeps because the ring is full is woken when half of the ring is free, not for
//! each byte.
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

/// Minimum and maximum capacity of a ring, which is a power of two.
pub(crate) const SMALLEST: usize = 4096;
pub(crate) const LARGEST: usize = 64 << 20;

/// Number of copied bytes after which a side publishes its position.
///
/// Both sides can then copy in parallel.
const STEP: usize = 64 << 10;

#[derive(Debug, Clone)]
pub(crate) struct RingLayout {
    memory: Arc<Memory>,
    /// Offset of the first byte; a multiple of the page size.
    offset: usize,
    /// Capacity in bytes; a power of two.
    capacity: usize,
}

impl RingLayout {
    pub(crate) fn length(capacity: usize) -> usize {
        BYTES + capacity
    }

    /// Creates the layout of a ring of this capacity at this offset.
    ///
    /// The whole ring must be in the memory.
    pub(crate) fn new(memory: Arc<Memory>, offset: usize, capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && (SMALLEST..=LARGEST).contains(&capacity));
        assert!(offset.is_multiple_of(BYTES));
        assert!(offset + Self::length(capacity) <= memory.len());
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
        unsafe { self.memory.as_mut_ptr().add(self.offset + offset) }
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the position is mapped for as long as `self` lives. It is aligned, because
        // mappings and rings begin at pages and the offsets are multiples of 128. Both sides access
        // it only by atomics.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    fn flag(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }

    /// Returns the part of the ring from byte `position` of the stream.
    ///
    /// The part has at most `length` bytes. It never exceeds the end of the ring, whatever the
    /// arguments are.
    fn piece(&self, position: u64, length: usize) -> (*mut u8, usize) {
        let at = (position & (self.capacity as u64 - 1)) as usize;
        (self.at(BYTES + at), length.min(self.capacity - at))
    }

    /// Returns the number of bytes in the ring, according to these positions.
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

/// Writing end of a ring.
#[derive(Debug)]
pub struct Producer {
    layout: RingLayout,
    written: u64,
    /// Position of the consumer at the last poll.
    read: u64,
    /// Doorbell on which the consumer sleeps.
    data: Doorbell,
    /// Doorbell on which this side sleeps.
    space: Doorbell,
    /// `true` if this side has announced a sleep.
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

    /// Writes as many bytes of the parts, in order, as the ring has space for.
    ///
    /// Returns the number of bytes, which is 0 if the ring is full. Wakes the consumer if it
    /// sleeps. Never blocks. Ends an announced sleep, as [`Producer::awake`] does.
    ///
    /// # Errors
    ///
    /// [`ShmError::Broken`] if the peer has written an impossible position into the ring;
    /// [`ShmError::System`] if the system cannot wake the peer.
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

    /// Returns the number of bytes that can be written now.
    ///
    /// # Errors
    ///
    /// [`ShmError::Broken`] if the peer has written an impossible position into the ring.
    pub fn space(&mut self) -> Result<usize> {
        let read = self.layout.position(READ).load(Ordering::Acquire);
        let used = self.layout.used(self.written, read)?;
        self.read = read;
        Ok(self.layout.capacity - used)
    }

    /// Announces that this side sleeps until at least half of the ring is free.
    ///
    /// If this returns `true`, wait for [`Producer::doorbell`] to become readable, and then call
    /// [`Producer::awake`]. `false` means that no sleep is necessary, or that the peer broke the
    /// ring, which a later write reports.
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

    /// Ends a sleep of this side, and clears its doorbell.
    ///
    /// Call this after every announced sleep, whether the doorbell or another event ended it.
    pub fn awake(&mut self) {
        self.announced = false;
        rise(self.layout.flag(PRODUCER_SLEEPS));
        self.space.clear();
    }

    /// Ends an announced sleep, because a side that writes does not sleep.
    ///
    /// If the peer has already rung, the doorbell is cleared.
    fn rise(&mut self) {
        if self.announced {
            self.announced = false;
            if rise(self.layout.flag(PRODUCER_SLEEPS)) {
                self.space.clear();
            }
        }
    }

    /// Returns the doorbell that ends an announced sleep; for `poll` and `epoll`.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.space.as_fd()
    }

    /// Returns the space, polled again only if the last known space is too little.
    fn space_for(&mut self, wanted: usize) -> Result<usize> {
        let space = self.layout.capacity - self.layout.used(self.written, self.read)?;
        if space >= wanted {
            return Ok(space);
        }
        self.space()
    }

    /// Copies bytes into the ring, which must have space for them.
    fn copy(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (to, length) = self.layout.piece(self.written, bytes.len());
            // SAFETY: the part has `length` bytes within the ring, and the source has at least as
            // many. They do not overlap, because there is no reference into the ring. If the peer
            // reads or writes there against the protocol, bytes are wrong and nothing else.
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

/// Reading end of a ring.
#[derive(Debug)]
pub struct Consumer {
    layout: RingLayout,
    read: u64,
    /// Position of the producer at the last poll.
    written: u64,
    /// Doorbell on which this side sleeps.
    data: Doorbell,
    /// Doorbell on which the producer sleeps.
    space: Doorbell,
    /// `true` if this side has announced a sleep.
    announced: bool,
    /// `true` if the doorbell may have rung since it was last cleared.
    ///
    /// The doorbell is cleared at the next sleep, because the bytes that rang it are read first.
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

    /// Reads as many bytes as are available and fit.
    ///
    /// Returns the number of bytes, which is 0 if the ring is empty. Wakes the producer if it
    /// sleeps and half of the ring is free. Never blocks. Ends an announced sleep, as
    /// [`Consumer::awake`] does.
    ///
    /// # Errors
    ///
    /// [`ShmError::Broken`] if the peer has written an impossible position into the ring;
    /// [`ShmError::System`] if the system cannot wake the peer.
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

    /// Returns the number of bytes that can be read now.
    /// This check is cheap to repeat.
    ///
    /// # Errors
    ///
    /// [`ShmError::Broken`] if the peer has written an impossible position into the ring.
    pub fn available(&mut self) -> Result<usize> {
        let written = self.layout.position(WRITTEN).load(Ordering::Acquire);
        let used = self.layout.used(written, self.read)?;
        self.written = written;
        Ok(used)
    }

    /// Announces that this side sleeps until there are bytes to read.
    ///
    /// If this returns `true`, wait for [`Consumer::doorbell`] to become readable, and then call
    /// [`Consumer::awake`]. `false` means that there are already bytes, or that the peer broke the
    /// ring, which the next read reports.
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

    /// Ends an announced sleep, whether the doorbell or another event ended it.
    ///
    /// The doorbell stays readable until the next [`Consumer::prepare_to_sleep`].
    pub fn awake(&mut self) {
        self.announced = false;
        rise(self.layout.flag(CONSUMER_SLEEPS));
        self.rung = true;
    }

    /// Ends an announced sleep, because a side that reads does not sleep.
    ///
    /// If the peer has already rung, the next sleep clears the doorbell.
    fn rise(&mut self) {
        if self.announced {
            self.announced = false;
            self.rung |= rise(self.layout.flag(CONSUMER_SLEEPS));
        }
    }

    /// Returns the doorbell that ends an announced sleep; for `poll` and `epoll`.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.data.as_fd()
    }

    /// Copies bytes out of the ring, which must have as many.
    fn copy(&mut self, mut into: &mut [u8]) {
        while !into.is_empty() {
            let (from, length) = self.layout.piece(self.read, into.len());
            // SAFETY: the part has `length` bytes within the ring, and the target has at least as
            // many. They do not overlap, because there is no reference into the ring. If the peer
            // writes there against the protocol, the copied bytes are wrong, and all values of
            // bytes are valid.
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
