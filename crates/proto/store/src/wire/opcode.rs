//! The one byte in front of every request.

use std::ops::RangeInclusive;

/// The number that a client sends in `VALIDATE`, before anything else.
pub const VALIDATE_MAGIC: u32 = 0x3C85_F7CE;

/// Opcodes between the stock range and the printable end of ASCII. Reserved for extensions of our
/// own, whose body is a `u64` length and that many bytes; a server without one closes on them, as
/// on every other unknown opcode.
pub const EXTENSION_OPCODES: RangeInclusive<u8> = 0x13..=0x7f;

/// What a request asks for. The numbers only ever grew since PyTorch 2.2, so this one table serves
/// clients from 2.2 to 2.15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Magic number; first request of a connection. No reply.
    Validate = 0x00,
    /// Stores a value. No reply.
    Set = 0x01,
    /// Stores a value if the key holds what is expected. Replies with bytes.
    CompareSet = 0x02,
    /// Replies with the value.
    Get = 0x03,
    /// Adds to a decimal number. Replies with the sum.
    Add = 0x04,
    /// Asks whether all keys are there. Replies with a [`CheckReply`](super::reply::CheckReply).
    Check = 0x05,
    /// Replies with [`STOP_WAITING`](super::reply::STOP_WAITING) once all keys are there.
    Wait = 0x06,
    /// Replies with the number of keys.
    GetNumKeys = 0x07,
    /// Removes a key. Replies with how many were removed, 0 or 1.
    DeleteKey = 0x08,
    /// Appends to a value or creates it. No reply.
    Append = 0x09,
    /// Replies with the values, back to back.
    MultiGet = 0x0a,
    /// Stores several values. No reply.
    MultiSet = 0x0b,
    /// Gives up all waits. Replies with [`WAIT_CANCELED`](super::reply::WAIT_CANCELED).
    CancelWait = 0x0c,
    /// Replies with the same nonce (clients since 2.5 send it once, after `VALIDATE`).
    Ping = 0x0d,
    /// Adds to the end of a queue. No reply.
    QueuePush = 0x0e,
    /// Replies with the length before the pop and, if it was not 0, the value.
    QueuePop = 0x0f,
    /// Replies with the length of a queue.
    QueueLen = 0x10,
    /// Replies with a count and all keys.
    ListKeys = 0x11,
    /// Counts the caller; replies [`STOP_WAITING`](super::reply::STOP_WAITING) when all have come.
    Barrier = 0x12,
}

const ALL: [Opcode; 0x13] = [
    Opcode::Validate,
    Opcode::Set,
    Opcode::CompareSet,
    Opcode::Get,
    Opcode::Add,
    Opcode::Check,
    Opcode::Wait,
    Opcode::GetNumKeys,
    Opcode::DeleteKey,
    Opcode::Append,
    Opcode::MultiGet,
    Opcode::MultiSet,
    Opcode::CancelWait,
    Opcode::Ping,
    Opcode::QueuePush,
    Opcode::QueuePop,
    Opcode::QueueLen,
    Opcode::ListKeys,
    Opcode::Barrier,
];

impl Opcode {
    /// The opcode of that number, if it is a stock one.
    pub fn from_byte(byte: u8) -> Option<Self> {
        ALL.get(usize::from(byte)).copied()
    }

    /// The number on the wire.
    pub fn byte(self) -> u8 {
        self as u8
    }

    /// The body of a request of this kind.
    pub(super) fn fields(self) -> &'static [Field] {
        use Field::{I64, Key, Keys, Pairs, U32, Value};
        match self {
            Self::Validate | Self::Ping => &[U32],
            Self::Set | Self::Append | Self::QueuePush => &[Key, Value],
            Self::CompareSet => &[Key, Value, Value],
            Self::Get | Self::DeleteKey | Self::QueuePop | Self::QueueLen => &[Key],
            Self::Add | Self::Barrier => &[Key, I64],
            Self::Check | Self::Wait | Self::MultiGet => &[Keys],
            Self::MultiSet => &[Pairs],
            Self::GetNumKeys | Self::CancelWait | Self::ListKeys => &[],
        }
    }
}

/// The body of a request with an opcode of [`EXTENSION_OPCODES`].
pub(super) const EXTENSION_FIELDS: &[Field] = &[Field::Payload];

/// One part of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// `u32`.
    U32,
    /// `i64`.
    I64,
    /// `u64` length, bytes; bounded as a key.
    Key,
    /// `u64` length, bytes; bounded as a value.
    Value,
    /// `u64` length, bytes; bounded as the request of an extension.
    Payload,
    /// `u64` count, then keys.
    Keys,
    /// `i64` count, then pairs of key and value.
    Pairs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_stands_at_its_own_number() {
        for byte in 0..=u8::MAX {
            assert_eq!(Opcode::from_byte(byte).is_some(), byte < 0x13);
            if let Some(opcode) = Opcode::from_byte(byte) {
                assert_eq!(opcode.byte(), byte);
            }
        }
    }
}
