//! Slots: memory that outlives its writing process.
//!
//! A writer may die at any byte, so it writes two slots alternately. A reader uses the newest
//! complete slot.
//!
//! ```text
//!   slot   sequence: u64, length: u64, digest: u64, then the content
//! ```

use std::hash::Hasher as _;

use crate::field::write;

/// Length of the fields before the content of a slot.
const HEAD: usize = 24;

/// Returns the bytes of a slot.
pub fn encode(sequence: u64, content: &[u8]) -> Vec<u8> {
    let mut slot = Vec::with_capacity(HEAD + content.len());
    let (length, digest) = (content.len() as u64, digest(sequence, content));
    write(&mut slot, &[&sequence, &length, &digest]);
    slot.extend_from_slice(content);
    slot
}

/// Returns the content of the newest complete slot, and its sequence number.
///
/// `None` if no slot is complete. Bytes after the content of a slot are ignored.
pub fn newest<T>(slots: [&[u8]; 2], read: impl Fn(Bytes<'_>) -> Option<T>) -> Option<(u64, T)> {
    let whole = slots.into_iter().filter_map(|slot| {
        let (sequence, content) = decode(slot)?;
        Some((sequence, read(Bytes(content))?))
    });
    whole.max_by_key(|(sequence, _)| *sequence)
}

fn decode(slot: &[u8]) -> Option<(u64, &[u8])> {
    let mut head = Bytes(slot);
    let (sequence, length, expected) = (head.u64()?, head.u64()?, head.u64()?);
    let content = head.take(usize::try_from(length).ok()?)?;
    (digest(sequence, content) == expected).then_some((sequence, content))
}

/// Returns the digest of a slot, which detects an incomplete write.
fn digest(sequence: u64, content: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write_u64(sequence);
    hasher.write(content);
    hasher.finish()
}

/// Reader that takes numbers from the front of a slice.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Reads `count` bytes; `None` if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// Reads a number; `None` if there are too few bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.take(8)?.first_chunk().copied().map(u64::from_le_bytes)
    }

    /// Reads a number; `None` if there are too few bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.first_chunk().copied().map(u32::from_le_bytes)
    }

    /// Reads a number; `None` if there are too few bytes.
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    /// Reads a count and that number of integers; `None` if bytes are missing.
    pub fn numbers(&mut self) -> Option<Vec<u64>> {
        let count = self.u32()? as usize;
        let numbers = self.take(count.checked_mul(8)?)?.as_chunks().0.iter();
        Some(numbers.map(|number| u64::from_le_bytes(*number)).collect())
    }
}

/// Writes numbers in the form that [`Bytes::numbers`] reads.
pub fn write_numbers(numbers: &[u64], out: &mut Vec<u8>) {
    write(out, &[&(numbers.len() as u32)]);
    numbers.iter().for_each(|number| write(out, &[number]));
}

/// Returns a byte with these flags, the first one in the lowest bit.
pub(crate) fn flags<const N: usize>(flags: [bool; N]) -> u8 {
    let bits = (0..).zip(flags);
    bits.map(|(bit, flag)| u8::from(flag) << bit).sum()
}

/// Reads the output of [`flags`].
pub(crate) fn read_flags<const N: usize>(byte: u8) -> [bool; N] {
    std::array::from_fn(|bit| byte & 1 << bit != 0)
}
