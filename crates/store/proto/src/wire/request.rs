//! Requests: the table of opcodes, reading and writing.
//!
//! The server reads complete requests, and the client writes them.
//!
//! Reading copies and allocates nothing. Written keys are wire keys, which include the `/` that
//! PyTorch prepends to every key of its API. The `_head` functions write everything but the last
//! value, for callers that send a large value from its own buffer.

use std::ops::RangeInclusive;

use crate::meter::Shared;

use super::StoreWireError;
use super::fields::{Body, Field, Keys, PairFields, Part, Reader, Stop};
use crate::limits::Limits;

/// The number that a client sends in `VALIDATE`, before anything else.
pub const VALIDATE_MAGIC: u32 = 0x3C85_F7CE;

/// Ranges of opcodes, each reserved for one protocol; others are free.
/// No request has an opcode in the ranges of `relay` and `status` yet.
pub const OPCODE_RANGES: [(&str, RangeInclusive<u8>); 7] = [
    ("the store of PyTorch", 0x00..=0x12),
    ("rendezvous", 0x20..=0x2b),
    ("token", 0x30..=0x37),
    ("consensus", 0x40..=0x48),
    ("relay", 0x50..=0x57),
    ("status", 0x60..=0x67),
    ("the store of rdzv", 0x70..=0x77),
];

/// Opcodes of an extension, except those in [`Opcode`].
/// They range from the end of PyTorch's opcodes to the end of ASCII. Their body is a `u64` length
/// and that many bytes. A server without an extension closes the connection, as for any unknown
/// opcode.
pub const EXTENSION_OPCODES: RangeInclusive<u8> = 0x13..=0x7f;

/// The opcodes of the native rendezvous; see [`OPCODE_RANGES`].
pub mod rendezvous {
    /// Joins the next round.
    pub const JOIN: u8 = 0x20;
    /// Leaves the run.
    pub const LEAVE: u8 = 0x21;
    /// Ends the run for all agents.
    pub const CLOSE: u8 = 0x22;
    /// Reports that the agent is running.
    pub const HEARTBEAT: u8 = 0x23;
    /// Announces a failure of the agent.
    pub const FAILED: u8 = 0x24;
    /// Announces the store of the workers.
    pub const MASTER: u8 = 0x25;
    /// Requests the state of a run.
    pub const STATUS: u8 = 0x26;
    /// Reattaches over a new connection.
    pub const REATTACH: u8 = 0x27;
    /// Reports that all workers of an agent have succeeded in a round.
    pub const SUCCEEDED: u8 = 0x28;
    /// Renews the lease of an agent.
    pub const LEASE: u8 = 0x29;
    /// Announces that the connection is about to close while its process lives.
    pub const DETACH: u8 = 0x2a;
    /// Reports whether an agent can be a voter.
    pub const CANDIDATE: u8 = 0x2b;
}

/// Nonce with which a client detects an rdzv server.
/// An rdzv server supports additional requests, and replies with [`NATIVE_ANSWER`]. Other servers
/// echo the nonce. The nonce exceeds every process id, because other clients send their process id.
pub const NATIVE_PROBE: u32 = 0x7372_6452;
/// Reply of an rdzv server to [`NATIVE_PROBE`].
pub const NATIVE_ANSWER: u32 = 0x7472_6452;

/// The effect of a request on the keys that it names. Queues are not keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Nothing,
    Reads,
    Writes,
}

/// Each row: the opcode and its number, the effect on keys, and the body.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $access:ident { $($field:ident: $part:ty),* };)*) => {
        /// The kind of a request.
        /// PyTorch has only added numbers since 2.2, so this one table serves clients from 2.2 to
        /// 2.15. The numbers of rdzv's own requests are far above.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// Returns the opcode with this number, if it is one of a store.
            #[inline]
            pub fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the number on the wire.
            pub fn byte(self) -> u8 {
                self as u8
            }
        }

        /// One request, which borrows as much as possible from its bytes.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request<'a> {
            $(
                $(#[$doc])*
                $name {
                    $(
                        #[doc = concat!("`", stringify!($field), "`, as it was sent.")]
                        $field: $part,
                    )*
                },
            )*
            /// A request of an extension.
            Extension {
                /// Opcode of the request, one of [`EXTENSION_OPCODES`].
                opcode: u8,
                /// Body of the request.
                payload: &'a [u8],
            },
        }

        impl<'a> Request<'a> {
            /// Returns the fields of a request of this kind.
            pub(super) fn fields(opcode: Opcode) -> &'static [Field] {
                match opcode {
                    $(Opcode::$name => const { &[$(<$part as Part<'a>>::FIELD),*] },)*
                }
            }

            #[inline]
            fn read(opcode: Opcode, reader: &mut Reader<'a, '_>) -> Result<Self, Stop> {
                Ok(match opcode {
                    $(Opcode::$name => Self::$name { $($field: Part::read(reader)?),* },)*
                })
            }

            /// Returns the key that the request names and the effect on it.
            /// `None` for a request with a list of keys, with a queue or without a key.
            pub(crate) fn single_key(&self) -> Option<(&'a [u8], Access)> {
                let mut single = None;
                match self {
                    $(Self::$name { $($field),* } => {
                        $(if let Some(key) = Part::as_key($field) {
                            single = Some((key, Access::$access));
                        })*
                    })*
                    Self::Extension { .. } => {}
                }
                single.filter(|(_, access)| *access != Access::Nothing)
            }
        }
    };
}

requests! {
    /// Magic number; first request of a connection. No reply.
    Validate = 0x00, Nothing { magic: u32 };
    /// Stores a value. No reply.
    Set = 0x01, Writes { key: &'a [u8], value: Body<'a> };
    /// Stores a value if the key holds the expected one. Replies with bytes.
    CompareSet = 0x02, Writes { key: &'a [u8], expected: Body<'a>, desired: Body<'a> };
    /// Replies with the value.
    Get = 0x03, Reads { key: &'a [u8] };
    /// Adds to a decimal number. Replies with the sum.
    Add = 0x04, Writes { key: &'a [u8], delta: i64 };
    /// Checks that all keys exist.
    /// Replies with a [`CheckReply`](super::reply::CheckReply).
    Check = 0x05, Reads { keys: Keys<'a> };
    /// Waits until all keys exist.
    /// Replies with [`STOP_WAITING`](super::reply::STOP_WAITING).
    Wait = 0x06, Reads { keys: Keys<'a> };
    /// Replies with the number of keys.
    GetNumKeys = 0x07, Nothing {};
    /// Removes a key. Replies with the number of removed keys, 0 or 1.
    DeleteKey = 0x08, Writes { key: &'a [u8] };
    /// Appends to a value or creates it. No reply.
    Append = 0x09, Writes { key: &'a [u8], value: Body<'a> };
    /// Replies with the values in order, without a separator.
    MultiGet = 0x0a, Reads { keys: Keys<'a> };
    /// Stores several values. No reply.
    MultiSet = 0x0b, Writes { pairs: PairFields<'a> };
    /// Cancels all waits of the connection.
    /// Replies with [`WAIT_CANCELED`](super::reply::WAIT_CANCELED).
    CancelWait = 0x0c, Nothing {};
    /// Replies with the same nonce, unless the nonce is a probe.
    /// Clients since 2.5 send it once, after `VALIDATE`.
    Ping = 0x0d, Nothing { nonce: u32 };
    /// Appends a value to a queue. No reply.
    QueuePush = 0x0e, Nothing { key: &'a [u8], value: Body<'a> };
    /// Replies with the length before the pop and, if it was not 0, the value.
    QueuePop = 0x0f, Nothing { key: &'a [u8] };
    /// Replies with the length of a queue.
    QueueLen = 0x10, Nothing { key: &'a [u8] };
    /// Replies with a count and all keys.
    ListKeys = 0x11, Nothing {};
    /// Counts the caller and waits until all members have arrived.
    /// Replies with [`STOP_WAITING`](super::reply::STOP_WAITING).
    Barrier = 0x12, Writes { key: &'a [u8], world_size: i64 };
    /// Replies with the value of a key, or waits for the key.
    /// If the key exists, the reply is [`VALUE_FOLLOWS`](super::reply::VALUE_FOLLOWS) and the
    /// value. Otherwise this is a `WAIT` for the key. Only rdzv servers support it: see
    /// [`NATIVE_PROBE`].
    GetWhenThere = 0x70, Reads { key: &'a [u8] };
}

/// Reads the request at the start of `bytes`; `None` if it is incomplete.
///
/// Returns the request and its number of bytes. A length over its limit is an error as soon as it
/// has arrived, even if nothing follows.
#[inline]
pub fn decode<'a>(
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<Option<(Request<'a>, usize)>, StoreWireError> {
    decode_parts(bytes, None, limits)
}

/// Reads a request like [`decode`], with its large bodies in `bodies`.
/// These are the bodies of at least [`LARGE_BODY`](super::LARGE_BODY) bytes. If `bodies` is `None`,
/// all bodies are in `bytes`.
#[inline]
pub(super) fn decode_parts<'a>(
    bytes: &'a [u8],
    bodies: Option<&'a [Shared]>,
    limits: &Limits,
) -> Result<Option<(Request<'a>, usize)>, StoreWireError> {
    let Some((&byte, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let mut reader = Reader {
        rest,
        bodies,
        limits,
    };
    let request = match Opcode::from_byte(byte) {
        Some(opcode) => Request::read(opcode, &mut reader),
        None if is_extension(byte, limits) => reader.payload().map(|payload| Request::Extension {
            opcode: byte,
            payload,
        }),
        None => return Err(StoreWireError::UnknownOpcode(byte)),
    };
    match request {
        Ok(request) => Ok(Some((request, bytes.len() - reader.rest.len()))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Wrong(error)) => Err(error),
    }
}

/// `true` if a byte is an opcode of an extension, and there is an extension.
pub(super) fn is_extension(byte: u8, limits: &Limits) -> bool {
    limits.max_extension_bytes > 0 && EXTENSION_OPCODES.contains(&byte)
}

/// Writes `VALIDATE` and `PING`, the first bytes of a connection.
/// The answer is the nonce, or the reply to a probe; see [`NATIVE_PROBE`].
pub fn preamble(out: &mut Vec<u8>, nonce: u32) {
    out.push(Opcode::Validate.byte());
    out.extend_from_slice(&VALIDATE_MAGIC.to_le_bytes());
    ping(out, nonce);
}

/// Writes `PING`, answered with the nonce or with the reply to a probe.
pub fn ping(out: &mut Vec<u8>, nonce: u32) {
    out.push(Opcode::Ping.byte());
    out.extend_from_slice(&nonce.to_le_bytes());
}

/// Writes `SET`, not answered.
pub fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    set_head(out, key, value.len());
    out.extend_from_slice(value);
}

/// Writes `SET` without the bytes of the value.
pub fn set_head(out: &mut Vec<u8>, key: &[u8], value_length: usize) {
    keyed(out, Opcode::Set, key);
    length(out, value_length);
}

/// Writes `COMPARE_SET`, answered with bytes.
pub fn compare_set(out: &mut Vec<u8>, key: &[u8], expected: &[u8], desired: &[u8]) {
    keyed(out, Opcode::CompareSet, key);
    bytes(out, expected);
    bytes(out, desired);
}

/// Writes `GET`, answered with bytes (empty for an absent key).
pub fn get(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::Get, key);
}

/// Writes `GET_WHEN_THERE`, answered with a value or as [`wait`].
/// [`VALUE_FOLLOWS`](super::reply::VALUE_FOLLOWS) precedes the value.
pub fn get_when_there(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::GetWhenThere, key);
}

/// Writes `ADD`, answered with the sum.
pub fn add(out: &mut Vec<u8>, key: &[u8], delta: i64) {
    keyed(out, Opcode::Add, key);
    out.extend_from_slice(&delta.to_le_bytes());
}

/// Writes `CHECK`, answered with a [`CheckReply`](super::reply::CheckReply).
pub fn check<K: AsRef<[u8]>>(out: &mut Vec<u8>, keys: &[K]) {
    listed(out, Opcode::Check, keys);
}

/// Writes `WAIT`, answered once all keys exist.
/// The answer is [`STOP_WAITING`](super::reply::STOP_WAITING).
pub fn wait<K: AsRef<[u8]>>(out: &mut Vec<u8>, keys: &[K]) {
    listed(out, Opcode::Wait, keys);
}

/// Writes `CANCEL_WAIT`.
/// The answer is [`WAIT_CANCELED`](super::reply::WAIT_CANCELED).
pub fn cancel_wait(out: &mut Vec<u8>) {
    out.push(Opcode::CancelWait.byte());
}

/// Writes `GETNUMKEYS`, answered with a number.
pub fn get_num_keys(out: &mut Vec<u8>) {
    out.push(Opcode::GetNumKeys.byte());
}

/// Writes `DELETE_KEY`, answered with 0 or 1.
pub fn delete_key(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::DeleteKey, key);
}

/// Writes `APPEND`, not answered.
pub fn append(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    append_head(out, key, value.len());
    out.extend_from_slice(value);
}

/// Writes `APPEND` without the bytes of the value.
pub fn append_head(out: &mut Vec<u8>, key: &[u8], value_length: usize) {
    keyed(out, Opcode::Append, key);
    length(out, value_length);
}

/// Writes `MULTI_GET`, answered with the values in order.
pub fn multi_get<K: AsRef<[u8]>>(out: &mut Vec<u8>, keys: &[K]) {
    listed(out, Opcode::MultiGet, keys);
}

/// Writes `MULTI_SET`, not answered.
pub fn multi_set<K: AsRef<[u8]>, V: AsRef<[u8]>>(out: &mut Vec<u8>, pairs: &[(K, V)]) {
    out.push(Opcode::MultiSet.byte());
    length(out, pairs.len());
    for (key, value) in pairs {
        bytes(out, key.as_ref());
        bytes(out, value.as_ref());
    }
}

/// Writes `QUEUE_PUSH`, not answered.
pub fn queue_push(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    queue_push_head(out, key, value.len());
    out.extend_from_slice(value);
}

/// Writes `QUEUE_PUSH` without the bytes of the value.
pub fn queue_push_head(out: &mut Vec<u8>, key: &[u8], value_length: usize) {
    keyed(out, Opcode::QueuePush, key);
    length(out, value_length);
}

/// Writes `QUEUE_POP`.
/// The answer is the length before the pop and, if that was not 0, the value.
pub fn queue_pop(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::QueuePop, key);
}

/// Writes `QUEUE_LEN`, answered with a number.
pub fn queue_len(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::QueueLen, key);
}

/// Writes `LIST_KEYS`, answered with a count and the keys.
pub fn list_keys(out: &mut Vec<u8>) {
    out.push(Opcode::ListKeys.byte());
}

/// Writes `BARRIER`, answered once all members have arrived.
/// The answer is [`STOP_WAITING`](super::reply::STOP_WAITING).
pub fn barrier(out: &mut Vec<u8>, key: &[u8], world_size: i64) {
    keyed(out, Opcode::Barrier, key);
    out.extend_from_slice(&world_size.to_le_bytes());
}

/// Writes a request of an extension, with one of [`EXTENSION_OPCODES`].
pub fn extension(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    out.push(opcode);
    bytes(out, payload);
}

fn keyed(out: &mut Vec<u8>, opcode: Opcode, key: &[u8]) {
    out.push(opcode.byte());
    bytes(out, key);
}

fn listed<K: AsRef<[u8]>>(out: &mut Vec<u8>, opcode: Opcode, keys: &[K]) {
    out.push(opcode.byte());
    length(out, keys.len());
    for key in keys {
        bytes(out, key.as_ref());
    }
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    length(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&(length as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_stands_at_its_own_number() {
        for byte in 0..=u8::MAX {
            assert_eq!(
                Opcode::from_byte(byte).is_some(),
                byte < 0x13 || byte == Opcode::GetWhenThere as u8
            );
            if let Some(opcode) = Opcode::from_byte(byte) {
                assert_eq!(opcode.byte(), byte);
            }
        }
    }

    #[test]
    fn ranges_of_opcodes_do_not_overlap_and_hold_their_opcodes() {
        for pair in OPCODE_RANGES.windows(2) {
            assert!(pair[0].1.end() < pair[1].1.start(), "{pair:?}");
        }
        for byte in 0..=u8::MAX {
            let owner = OPCODE_RANGES
                .iter()
                .find(|(_, range)| range.contains(&byte));
            let of_pytorch = owner.is_some_and(|(name, _)| *name == "the store of PyTorch");
            let of_a_store = owner.is_some_and(|(name, _)| name.starts_with("the store of"));
            assert!(Opcode::from_byte(byte).is_none() || of_a_store);
            assert!(Opcode::from_byte(byte).is_some() || !of_pytorch);
            assert!(owner.is_none() || of_pytorch || EXTENSION_OPCODES.contains(&byte));
        }
        let (_, rendezvous) = &OPCODE_RANGES[1];
        assert_eq!(*rendezvous, rendezvous::JOIN..=rendezvous::CANDIDATE);
    }
}
