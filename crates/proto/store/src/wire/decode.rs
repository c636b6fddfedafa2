//! Reading a request that is there in whole: no copies, no allocations.

use bytes::Bytes;

use super::opcode::{EXTENSION_OPCODES, Field, Opcode};
use super::{LARGE_BODY, WireError};
use crate::limits::Limits;

/// One request, as far as possible borrowed from the bytes it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// First request of a connection; only [`VALIDATE_MAGIC`](super::opcode::VALIDATE_MAGIC) is
    /// right.
    Validate {
        /// The number sent.
        magic: u32,
    },
    /// Store a value.
    Set {
        /// Where.
        key: &'a [u8],
        /// What.
        value: Body<'a>,
    },
    /// Store a value if the key holds what is expected.
    CompareSet {
        /// Where.
        key: &'a [u8],
        /// What it must hold; empty also means absent.
        expected: Body<'a>,
        /// What it shall hold.
        desired: Body<'a>,
    },
    /// The value of a key.
    Get {
        /// Which.
        key: &'a [u8],
    },
    /// Add to a number.
    Add {
        /// Where.
        key: &'a [u8],
        /// How much.
        delta: i64,
    },
    /// Whether all keys are there.
    Check {
        /// Which.
        keys: Keys<'a>,
    },
    /// Answer once all keys are there.
    Wait {
        /// Which.
        keys: Keys<'a>,
    },
    /// How many keys there are.
    GetNumKeys,
    /// Remove a key.
    DeleteKey {
        /// Which.
        key: &'a [u8],
    },
    /// Append to a value.
    Append {
        /// Where.
        key: &'a [u8],
        /// What.
        value: Body<'a>,
    },
    /// The values of several keys.
    MultiGet {
        /// Which.
        keys: Keys<'a>,
    },
    /// Store several values.
    MultiSet {
        /// What, and where.
        pairs: Pairs<'a>,
    },
    /// Give up all waits.
    CancelWait,
    /// Echo the nonce.
    Ping {
        /// The nonce.
        nonce: u32,
    },
    /// Add to the end of a queue.
    QueuePush {
        /// Which queue.
        key: &'a [u8],
        /// What.
        value: Body<'a>,
    },
    /// Take the first of a queue.
    QueuePop {
        /// Which queue.
        key: &'a [u8],
    },
    /// The length of a queue.
    QueueLen {
        /// Which queue.
        key: &'a [u8],
    },
    /// All keys.
    ListKeys,
    /// Be counted, and answered when enough have come.
    Barrier {
        /// The counter's key.
        key: &'a [u8],
        /// How many must come.
        world_size: i64,
    },
    /// A request of an extension.
    Extension {
        /// Its opcode, one of [`EXTENSION_OPCODES`].
        opcode: u8,
        /// What it says.
        payload: &'a [u8],
    },
}

/// A value in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// Lies among the other bytes of the request; to be copied if it is kept.
    Inline(&'a [u8]),
    /// Was received into a buffer of its own; to be kept as it is.
    Whole(Bytes),
}

impl AsRef<[u8]> for Body<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Whole(bytes) => bytes,
        }
    }
}

/// The keys of a request, read as they are iterated over.
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

/// The pairs of a `MULTI_SET`, read as they are iterated over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pairs<'a> {
    count: usize,
    bytes: &'a [u8],
    bodies: Option<&'a [Bytes]>,
}

impl<'a> Iterator for Pairs<'a> {
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

impl ExactSizeIterator for Pairs<'_> {}

/// Reads the request at the start of `bytes`; `None` if it is not there in whole yet.
///
/// Returns it and how many bytes it took. A length over its limit is an error as soon as it is
/// there, whether or not anything follows.
#[inline]
pub fn decode<'a>(
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<Option<(Request<'a>, usize)>, WireError> {
    decode_parts(bytes, None, limits)
}

/// Like [`decode`]; with `bodies`, the bodies of at least [`LARGE_BODY`] bytes lie there instead
/// of among the bytes.
#[inline]
pub(super) fn decode_parts<'a>(
    bytes: &'a [u8],
    bodies: Option<&'a [Bytes]>,
    limits: &Limits,
) -> Result<Option<(Request<'a>, usize)>, WireError> {
    let Some((&byte, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let mut reader = Reader {
        rest,
        bodies,
        limits,
    };
    let request = match Opcode::from_byte(byte) {
        Some(opcode) => reader.body(opcode),
        None if is_extension(byte, limits) => reader.payload().map(|payload| Request::Extension {
            opcode: byte,
            payload,
        }),
        None => return Err(WireError::UnknownOpcode(byte)),
    };
    match request {
        Ok(request) => Ok(Some((request, bytes.len() - reader.rest.len()))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Wrong(error)) => Err(error),
    }
}

/// Whether a byte is an opcode of an extension, and there is one.
pub(super) fn is_extension(byte: u8, limits: &Limits) -> bool {
    limits.max_extension_bytes > 0 && EXTENSION_OPCODES.contains(&byte)
}

/// Why reading ended before the request did.
enum Stop {
    Incomplete,
    Wrong(WireError),
}

struct Reader<'a, 'l> {
    rest: &'a [u8],
    bodies: Option<&'a [Bytes]>,
    limits: &'l Limits,
}

impl<'a> Reader<'a, '_> {
    #[inline]
    fn body(&mut self, opcode: Opcode) -> Result<Request<'a>, Stop> {
        Ok(match opcode {
            Opcode::Validate => Request::Validate { magic: self.u32()? },
            Opcode::Set => Request::Set {
                key: self.key()?,
                value: self.value()?,
            },
            Opcode::CompareSet => Request::CompareSet {
                key: self.key()?,
                expected: self.value()?,
                desired: self.value()?,
            },
            Opcode::Get => Request::Get { key: self.key()? },
            Opcode::Add => Request::Add {
                key: self.key()?,
                delta: self.i64()?,
            },
            Opcode::Check => Request::Check { keys: self.keys()? },
            Opcode::Wait => Request::Wait { keys: self.keys()? },
            Opcode::GetNumKeys => Request::GetNumKeys,
            Opcode::DeleteKey => Request::DeleteKey { key: self.key()? },
            Opcode::Append => Request::Append {
                key: self.key()?,
                value: self.value()?,
            },
            Opcode::MultiGet => Request::MultiGet { keys: self.keys()? },
            Opcode::MultiSet => Request::MultiSet {
                pairs: self.pairs()?,
            },
            Opcode::CancelWait => Request::CancelWait,
            Opcode::Ping => Request::Ping { nonce: self.u32()? },
            Opcode::QueuePush => Request::QueuePush {
                key: self.key()?,
                value: self.value()?,
            },
            Opcode::QueuePop => Request::QueuePop { key: self.key()? },
            Opcode::QueueLen => Request::QueueLen { key: self.key()? },
            Opcode::ListKeys => Request::ListKeys,
            Opcode::Barrier => Request::Barrier {
                key: self.key()?,
                world_size: self.i64()?,
            },
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Stop::Incomplete)?;
        self.rest = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, Stop> {
        self.array().map(i64::from_le_bytes)
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

    fn payload(&mut self) -> Result<&'a [u8], Stop> {
        let length = self.checked(Field::Payload)?;
        self.take(length)
    }

    fn keys(&mut self) -> Result<Keys<'a>, Stop> {
        let count = self.checked(Field::Keys)?;
        let start = self.rest;
        for _ in 0..count {
            self.key()?;
        }
        Ok(Keys {
            count,
            bytes: &start[..start.len() - self.rest.len()],
        })
    }

    fn pairs(&mut self) -> Result<Pairs<'a>, Stop> {
        let count = self.checked(Field::Pairs)?;
        let start = self.rest;
        let bodies = self.bodies;
        for _ in 0..count {
            self.key()?;
            self.value()?;
        }
        Ok(Pairs {
            count,
            bytes: &start[..start.len() - self.rest.len()],
            bodies,
        })
    }
}

/// A declared length or count as a `usize`, if it is within its limit.
///
/// The count of a `MULTI_SET` is signed on the wire; a negative one reads as a huge one here, and
/// is refused like it.
#[inline]
pub(super) fn within(field: Field, declared: u64, limits: &Limits) -> Result<usize, WireError> {
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
            Field::Key => WireError::KeyTooLong { declared, limit },
            Field::Value | Field::Payload => WireError::ValueTooLong { declared, limit },
            _ => WireError::TooManyKeys { declared, limit },
        }),
    }
}

/// Takes a length and that many bytes off the front.
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

fn take_body<'a>(bytes: &mut &'a [u8], bodies: &mut Option<&'a [Bytes]>) -> Option<Body<'a>> {
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
