//! The parts of a request's body: keys, values, numbers and lists.
//!
//! The parts are read without copies.

use crate::meter::Shared;

use super::{LARGE_BODY, StoreWireError};
use crate::limits::Limits;

/// One part of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    U32,
    I64,
    /// `u64` length and bytes, limited as a key.
    Key,
    /// `u64` length and bytes, limited as a value.
    Value,
    /// `u64` length and bytes, limited as a request of an extension.
    Payload,
    /// `u64` count and keys.
    Keys,
    /// `i64` count and pairs of key and value.
    Pairs,
}

/// A type that can be part of the body of a request.
pub(super) trait Part<'a>: Sized {
    const FIELD: Field;

    fn read(reader: &mut Reader<'a, '_>) -> Result<Self, Stop>;

    /// Returns the part itself if it is a key.
    fn as_key(&self) -> Option<&'a [u8]> {
        None
    }
}

impl Part<'_> for u32 {
    const FIELD: Field = Field::U32;

    #[inline]
    fn read(reader: &mut Reader<'_, '_>) -> Result<Self, Stop> {
        reader.array().map(Self::from_le_bytes)
    }
}

impl Part<'_> for i64 {
    const FIELD: Field = Field::I64;

    #[inline]
    fn read(reader: &mut Reader<'_, '_>) -> Result<Self, Stop> {
        reader.array().map(Self::from_le_bytes)
    }
}

/// A key.
impl<'a> Part<'a> for &'a [u8] {
    const FIELD: Field = Field::Key;

    #[inline]
    fn read(reader: &mut Reader<'a, '_>) -> Result<Self, Stop> {
        reader.key()
    }

    fn as_key(&self) -> Option<&'a [u8]> {
        Some(self)
    }
}

/// A value in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// Bytes within the request, which are copied if they are kept.
    Inline(&'a [u8]),
    /// Bytes in their own buffer, which is kept without a copy.
    Whole(Shared),
}

impl AsRef<[u8]> for Body<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Whole(bytes) => bytes,
        }
    }
}

impl<'a> Part<'a> for Body<'a> {
    const FIELD: Field = Field::Value;

    #[inline]
    fn read(reader: &mut Reader<'a, '_>) -> Result<Self, Stop> {
        reader.value()
    }
}

/// The keys of a request, read during the iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.count = self.count.checked_sub(1)?;
        take_sized(&mut self.bytes)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Keys<'_> {}

impl Keys<'_> {
    /// Returns a copy of the keys that have not been iterated over.
    pub fn to_list(&self) -> KeyList {
        KeyList {
            count: self.count,
            bytes: self.bytes.to_vec(),
            at: 0,
        }
    }
}

/// Keys of a request, kept after the request.
#[derive(Debug)]
pub struct KeyList {
    count: usize,
    bytes: Vec<u8>,
    at: usize,
}

impl KeyList {
    /// Returns the next key.
    pub fn take_next(&mut self) -> Option<&[u8]> {
        self.count = self.count.checked_sub(1)?;
        let mut rest = &self.bytes[self.at..];
        let key = take_sized(&mut rest);
        self.at = self.bytes.len() - rest.len();
        key
    }

    /// Returns the memory held.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

impl<'a> Part<'a> for Keys<'a> {
    const FIELD: Field = Field::Keys;

    fn read(reader: &mut Reader<'a, '_>) -> Result<Self, Stop> {
        let (count, bytes) = reader.list(Self::FIELD, |reader| reader.key().map(drop))?;
        Ok(Keys { count, bytes })
    }
}

/// The pairs of a `MULTI_SET`, read during the iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairFields<'a> {
    count: usize,
    bytes: &'a [u8],
    bodies: Option<&'a [Shared]>,
}

impl<'a> Iterator for PairFields<'a> {
    type Item = (&'a [u8], Body<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.count = self.count.checked_sub(1)?;
        let key = take_sized(&mut self.bytes)?;
        let body = take_body(&mut self.bytes, &mut self.bodies)?;
        Some((key, body))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for PairFields<'_> {}

impl PairFields<'_> {
    /// Returns a copy of the pairs that have not been iterated over.
    pub fn to_list(&self) -> PairList {
        PairList {
            keys: KeyList {
                count: self.count,
                bytes: self.bytes.to_vec(),
                at: 0,
            },
            bodies: self.bodies.map(<[Shared]>::to_vec),
            bodies_taken: 0,
        }
    }
}

/// Pairs of a `MULTI_SET`, kept after the request.
#[derive(Debug)]
pub struct PairList {
    /// Keys, and between them the values without their own buffer.
    keys: KeyList,
    bodies: Option<Vec<Shared>>,
    bodies_taken: usize,
}

impl PairList {
    /// Returns the next pair.
    pub fn take_next(&mut self) -> Option<(&[u8], Body<'_>)> {
        let list = &mut self.keys;
        list.count = list.count.checked_sub(1)?;
        let mut rest = &list.bytes[list.at..];
        let mut bodies = self.bodies.as_ref().map(|all| &all[self.bodies_taken..]);
        let before = bodies.map_or(0, <[Shared]>::len);
        let key = take_sized(&mut rest)?;
        let body = take_body(&mut rest, &mut bodies)?;
        self.bodies_taken += before - bodies.map_or(0, <[Shared]>::len);
        list.at = list.bytes.len() - rest.len();
        Some((key, body))
    }

    /// Returns the memory held, without values in their own buffers.
    pub fn memory(&self) -> usize {
        self.keys.memory() + self.bodies.as_ref().map_or(0, Vec::capacity) * size_of::<Shared>()
    }
}

impl<'a> Part<'a> for PairFields<'a> {
    const FIELD: Field = Field::Pairs;

    fn read(reader: &mut Reader<'a, '_>) -> Result<Self, Stop> {
        let bodies = reader.bodies;
        let (count, bytes) = reader.list(Self::FIELD, |reader| {
            reader.key()?;
            reader.value().map(drop)
        })?;
        Ok(PairFields {
            count,
            bytes,
            bodies,
        })
    }
}

/// The reason why reading ended before the request did.
pub(super) enum Stop {
    Incomplete,
    Wrong(StoreWireError),
}

pub(super) struct Reader<'a, 'l> {
    pub(super) rest: &'a [u8],
    pub(super) bodies: Option<&'a [Shared]>,
    pub(super) limits: &'l Limits,
}

impl<'a> Reader<'a, '_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Stop::Incomplete)?;
        self.rest = rest;
        Ok(*head)
    }

    fn checked(&mut self, field: Field) -> Result<usize, Stop> {
        let declared = self.array().map(u64::from_le_bytes)?;
        within(field, declared, self.limits).map_err(Stop::Wrong)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(Stop::Incomplete)?;
        self.rest = rest;
        Ok(head)
    }

    fn key(&mut self) -> Result<&'a [u8], Stop> {
        let length = self.checked(Field::Key)?;
        self.take(length)
    }

    fn value(&mut self) -> Result<Body<'a>, Stop> {
        let length = self.checked(Field::Value)?;
        if length >= LARGE_BODY
            && let Some(bodies) = &mut self.bodies
        {
            let (body, rest) = bodies.split_first().ok_or(Stop::Incomplete)?;
            *bodies = rest;
            return Ok(Body::Whole(body.clone()));
        }
        self.take(length).map(Body::Inline)
    }

    pub(super) fn payload(&mut self) -> Result<&'a [u8], Stop> {
        let length = self.checked(Field::Payload)?;
        self.take(length)
    }

    /// Reads a count and that many entries; returns the count and the bytes.
    fn list(
        &mut self,
        field: Field,
        mut entry: impl FnMut(&mut Self) -> Result<(), Stop>,
    ) -> Result<(usize, &'a [u8]), Stop> {
        let count = self.checked(field)?;
        let start = self.rest;
        for _ in 0..count {
            entry(self)?;
        }
        Ok((count, &start[..start.len() - self.rest.len()]))
    }
}

/// Returns a declared length or count as a `usize`, if it is within its limit.
///
/// The count of a `MULTI_SET` is signed on the wire. This function sees a negative count as a huge
/// count, which is above the limit.
#[inline]
pub(super) fn within(
    field: Field,
    declared: u64,
    limits: &Limits,
) -> Result<usize, StoreWireError> {
    let limit = match field {
        Field::Key => limits.max_key_bytes,
        Field::Value => limits.max_value_bytes,
        Field::Payload => limits.max_extension_bytes,
        Field::Keys | Field::Pairs => limits.max_keys_per_request,
        Field::U32 | Field::I64 => usize::MAX,
    };
    match usize::try_from(declared) {
        Ok(length) if length <= limit => Ok(length),
        _ => Err(match field {
            Field::Key => StoreWireError::KeyTooLong { declared, limit },
            Field::Value | Field::Payload => StoreWireError::ValueTooLong { declared, limit },
            _ => StoreWireError::TooManyKeys { declared, limit },
        }),
    }
}

/// Removes a length and that many bytes from the front.
fn take_sized<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_length(bytes)?;
    let (head, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(head)
}

fn take_length(bytes: &mut &[u8]) -> Option<usize> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    usize::try_from(u64::from_le_bytes(*head)).ok()
}

fn take_body<'a>(bytes: &mut &'a [u8], bodies: &mut Option<&'a [Shared]>) -> Option<Body<'a>> {
    let length = take_length(bytes)?;
    if length >= LARGE_BODY
        && let Some(bodies) = bodies
    {
        let (body, rest) = bodies.split_first()?;
        *bodies = rest;
        return Some(Body::Whole(body.clone()));
    }
    let (head, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(Body::Inline(head))
}
