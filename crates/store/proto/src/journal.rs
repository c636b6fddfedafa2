//! The file of a file store: an append-only log of records, and its replay.
//!
//! ```text
//!   u32 key length | key | u32 value length | value        little-endian, no header, no padding
//!
//!   /k            a user's key `k`
//!   -/k           the key `k` was deleted here (its value is empty)
//!   refcount/     decimal: number of store objects that are open on the file
//!   cleanup/      decimal: number of store objects that have been closed
//! ```
//!
//! The state results from applying all records from the beginning: the last record of a key wins. A
//! torn record is a record whose writer died before finishing it. Readers ignore a torn record, and
//! the next writer truncates it ([`Tail::Torn`]). Bytes that cannot begin a record mean that the
//! file does not belong to a store ([`Tail::Foreign`]). Such a file must not be changed.
//!
//! This module never opens a file. The driver reads the file from [`Journal::offset`] on and passes
//! the bytes to [`Journal::replay`].

use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error;

/// Number of store objects open on the file.
pub const OPEN_COUNT: &[u8] = b"refcount/";

/// Number of store objects that have been closed.
pub const CLOSED_COUNT: &[u8] = b"cleanup/";

/// Maximum length of a key in a record.
///
/// A file store refuses longer keys. A text file or a program, read as a record, declares a longer
/// key. The limit thus distinguishes a torn record from a foreign file.
pub const LONGEST_KEY: usize = 16 << 20;

/// Size of each of the two length fields, in bytes.
const LENGTH: usize = 4;

/// Error: a key or value is too long for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a {what} of {length} bytes is too long for a store file (at most {most})")]
pub struct TooLong {
    /// Part of the record: `key` or `value`.
    pub what: &'static str,
    /// Length of the key or value in bytes.
    pub length: usize,
    /// Maximum length.
    pub most: usize,
}

/// Returns the raw key of a user's key.
pub fn user_key(key: &str) -> Vec<u8> {
    [b"/", key.as_bytes()].concat()
}

/// Returns the raw key of the record that deletes a user's key.
pub fn deletion_of(key: &str) -> Vec<u8> {
    [b"-/", key.as_bytes()].concat()
}

/// Encodes one record, to be written with one write.
pub fn encode(raw_key: &[u8], value: &[u8]) -> Result<Vec<u8>, TooLong> {
    let key_length = length_field("key", raw_key.len(), LONGEST_KEY)?;
    let value_length = length_field("value", value.len(), u32::MAX as usize)?;
    Ok([&key_length, raw_key, &value_length, value].concat())
}

fn length_field(what: &'static str, length: usize, most: usize) -> Result<[u8; 4], TooLong> {
    match u32::try_from(length) {
        Ok(fits) if length <= most => Ok(fits.to_le_bytes()),
        _ => Err(TooLong { what, length, most }),
    }
}

/// The kind of the bytes after the last whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// There are no such bytes.
    Clean,
    /// The beginning of a record.
    Torn,
    /// Bytes that are not the beginning of a record.
    Foreign,
}

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Number of bytes in whole records.
    pub consumed: usize,
    /// The kind of the remaining bytes.
    pub tail: Tail,
}

/// The state of a file store, as far as its file has been read.
#[derive(Debug, Default, Clone)]
pub struct Journal {
    entries: BTreeMap<Vec<u8>, Bytes>,
    offset: u64,
}

impl Journal {
    /// Returns the offset of the next record: the end of the last applied record.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Applies the whole records at the beginning of `bytes`.
    ///
    /// The caller has read `bytes` at [`Journal::offset`].
    pub fn replay(&mut self, bytes: &[u8]) -> Replayed {
        let mut consumed = 0;
        let tail = loop {
            match next_record(&bytes[consumed..]) {
                Ok((key, value, length)) => {
                    self.apply(key, value);
                    consumed += length;
                }
                Err(tail) => break tail,
            }
        };
        self.offset += consumed as u64;
        let tail = if self.offset == 0 && !may_begin_a_file(bytes) {
            Tail::Foreign
        } else {
            tail
        };
        Replayed { consumed, tail }
    }

    fn apply(&mut self, raw_key: &[u8], value: &[u8]) {
        if let Some(deleted) = raw_key.strip_prefix(b"-") {
            self.entries.remove(deleted);
        } else {
            self.entries
                .insert(raw_key.to_vec(), Bytes::copy_from_slice(value));
        }
    }

    /// Returns the value of a raw key.
    pub fn get(&self, raw_key: &[u8]) -> Option<&Bytes> {
        self.entries.get(raw_key)
    }

    /// Returns the number of raw keys, including the two counts.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// `true` if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the users' keys, without the slash and without the two counts.
    pub fn user_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.keys().filter_map(|key| key.strip_prefix(b"/"))
    }
}

/// Reads the first record of `bytes`: its key, its value and its length.
///
/// If the bytes do not begin with a whole record, the error is their kind.
fn next_record(bytes: &[u8]) -> Result<(&[u8], &[u8], usize), Tail> {
    if bytes.is_empty() {
        return Err(Tail::Clean);
    }
    let (key, rest) = field(bytes).ok_or_else(|| kind_of_tail(bytes))?;
    if kind_of_tail(bytes) == Tail::Foreign {
        return Err(Tail::Foreign);
    }
    let (value, _) = field(rest).ok_or(Tail::Torn)?;
    Ok((key, value, 2 * LENGTH + key.len() + value.len()))
}

/// Reads a length and that many bytes; `None` if they are incomplete.
///
/// Returns these bytes and the bytes after them.
fn field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// `true` if `bytes` can be the beginning of the file of a store.
///
/// The first record of such a file counts its first user. Bytes that are too few to show a key must
/// therefore be a prefix of the length field of that key.
fn may_begin_a_file(bytes: &[u8]) -> bool {
    let length = (OPEN_COUNT.len() as u32).to_le_bytes();
    bytes.len() > LENGTH || length.starts_with(bytes)
}

/// Returns `Torn` if the bytes can begin a record, otherwise `Foreign`.
///
/// Only the visible part of the key is checked.
fn kind_of_tail(bytes: &[u8]) -> Tail {
    let Some((length, key)) = bytes.split_first_chunk::<LENGTH>() else {
        return Tail::Torn;
    };
    let length = u32::from_le_bytes(*length) as usize;
    let seen = &key[..key.len().min(length)];
    let begins = |whole: &[u8]| whole.starts_with(seen) && length == whole.len();
    let plausible = (1..=LONGEST_KEY).contains(&length)
        && (seen.is_empty()
            || matches!(seen[0], b'/' | b'-')
            || begins(OPEN_COUNT)
            || begins(CLOSED_COUNT));
    if plausible { Tail::Torn } else { Tail::Foreign }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_distinguished_from_torn_ones() {
        for foreign in [
            &b"#!/bin/sh\necho hello\n"[..],
            b"127.0.0.1 localhost\n",
            b"\x7fELF\x02\x01\x01",
            b"\0\0\0\0",
            b"pc\n",
            b"\x03\0\0\0abc\0\0\0\0",
            b"\x09\0\0\0refcounts\0\0\0\0",
        ] {
            let mut journal = Journal::default();
            assert_eq!(journal.replay(foreign).tail, Tail::Foreign, "{foreign:?}");
            assert_eq!(journal.offset(), 0);
        }
    }

    #[test]
    fn a_giant_length_reserves_nothing() {
        let mut journal = Journal::default();
        let record = [&b"\x02\0\0\0/a"[..], &u32::MAX.to_le_bytes(), b"short"].concat();
        assert_eq!(journal.replay(&record).tail, Tail::Torn);
        assert!(journal.is_empty());
    }

    #[test]
    fn keys_that_no_reader_would_believe_are_not_written() {
        let long = vec![b'k'; LONGEST_KEY + 1];
        assert_eq!(encode(&long, b"").unwrap_err().what, "key");
    }
}
