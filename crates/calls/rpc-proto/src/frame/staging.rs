//! Buffer that receives many small values at a time.

use bytes::{Bytes, BytesMut};

/// Size of the buffer in bytes, unless unread bytes need more.
pub(super) const STAGING: usize = 64 << 10;

/// Minimum room before the buffer is renewed.
///
/// A value that is read from the buffer is never longer than this, so it always fits.
pub(super) const LEAST_ROOM: usize = 16 << 10;

/// Received but unread bytes, and room for more behind them.
///
/// Bytes that are taken out share the memory. When the room runs out and no code holds such bytes
/// any more, the buffer reuses the same memory.
#[derive(Debug, Default)]
pub(super) struct Staging {
    /// Received bytes, then room. All of it is initialised.
    block: BytesMut,
    received: usize,
}

impl Staging {
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.block.len() - self.received < LEAST_ROOM {
            self.renew();
        }
        &mut self.block[self.received..]
    }

    pub(super) fn filled(&mut self, count: usize) {
        assert!(
            count <= self.block.len() - self.received,
            "no more than the room can be filled"
        );
        self.received += count;
    }

    /// Returns the bytes that were received and not taken.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.block[..self.received]
    }

    /// Returns the next bytes without taking them, if all of them have arrived.
    pub(super) fn peek<const N: usize>(&self) -> Option<&[u8; N]> {
        self.waiting().first_chunk()
    }

    /// Removes and returns this many received bytes.
    pub(super) fn take(&mut self, count: usize) -> Bytes {
        self.received -= count;
        self.block.split_to(count).freeze()
    }

    /// Discards this many received bytes.
    pub(super) fn skip(&mut self, count: usize) {
        self.received -= count;
        bytes::Buf::advance(&mut self.block, count);
    }

    fn renew(&mut self) {
        let size = STAGING.max(self.received + LEAST_ROOM);
        self.block.truncate(self.received);
        if !self.block.try_reclaim(size - self.received) {
            let mut block = BytesMut::with_capacity(size);
            block.extend_from_slice(&self.block);
            self.block = block;
        }
        self.block.resize(size, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(staging: &mut Staging, bytes: &[u8]) {
        staging.room()[..bytes.len()].copy_from_slice(bytes);
        staging.filled(bytes.len());
    }

    #[test]
    fn memory_that_nobody_holds_is_used_again() {
        let mut staging = Staging::default();
        let first = staging.room().as_ptr();
        let mut rounds_at_first = 0;
        for _ in 0..100 {
            receive(&mut staging, &[7; 10_000]);
            drop(staging.take(10_000));
            rounds_at_first += usize::from(staging.room().as_ptr() == first);
        }
        assert!(rounds_at_first > 10, "{rounds_at_first}");
    }

    #[test]
    fn what_is_held_is_never_overwritten() {
        let mut staging = Staging::default();
        let mut held = Vec::new();
        for round in 0..100_u8 {
            receive(&mut staging, &[round; 10_000]);
            held.push(staging.take(9_000));
            staging.skip(1_000);
        }
        for (round, bytes) in (0..).zip(held) {
            assert_eq!(bytes, vec![round; 9_000]);
        }
    }

    #[test]
    fn there_is_room_even_if_nothing_is_taken() {
        let mut staging = Staging::default();
        for _ in 0..10 {
            let room = staging.room().len();
            assert!(room >= LEAST_ROOM);
            receive(&mut staging, &vec![1; room]);
        }
        assert!(staging.waiting().iter().all(|byte| *byte == 1));
        assert!(staging.waiting().len() > 2 * STAGING);
    }
}
