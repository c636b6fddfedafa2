//! Bytes on the connections between two ranks.
//!
//! Each direction of a pair has a separate connection, dialled by the sender. The messages of a
//! pair have two more connections, to separate listeners. All numbers are little-endian, except the
//! version. The version has the byte order of the sender's memory, like the values. Ranks of
//! different byte order therefore refuse each other.
//!
//! ```text
//!   dialler -> acceptor   hello, perhaps an offer of memory, then data frames, perhaps one abort
//!   acceptor -> dialler   accept or refuse, later perhaps one abort
//!
//!   hello, 40 bytes                         frame, 32 bytes, then the payload of a data frame
//!    0 magic "RZPG"                          0 magic "RZPF"
//!    4 version (u16), flags (u16)            4 kind: 1 accept 2 refuse 3 abort 4 data; and below
//!    8 from rank (u32)                       5 operation | cause | refusal | offer taken
//!   12 to rank (u32)                         6 element type, reduction
//!   16 world size (u32), 0 (u32)             8 root | rank at fault | expected (u32)
//!   24 group id (16 bytes)                  12 length of the payload (u32)
//!                                           16 sequence (u64)
//!                                           24 elements (u64)
//! ```
//!
//! The only flag of a hello means that an offer of shared memory follows: a ring, with its
//! descriptors and the descriptor of the dialler's shared buffer. If the accept frame accepts the
//! offer, data frames go through the ring, and the socket carries at most an abort. If the values
//! are in the shared buffer, the payload is empty.
//!
//! Frames on the connections of messages, beside accept, refuse and abort:
//!
//! ```text
//!   dialler -> acceptor   5 announced message   8 tag, 16 number, 24 elements; values on request
//!                         6 eager message       the same; its values follow
//!                         8 piece               12 length of the following values, 16 number
//!   acceptor -> dialler   7 matched             16 number of a message that has a receive
//!   both                  9 leave               the sender leaves the group cleanly
//! ```
//!
//! All control frames have one fixed length. In a collective operation, the receiver knows the
//! length of a payload in advance and only compares it. The length of an eager message is limited.

use thiserror::Error;

use crate::call::{Call, GroupOperation};
use crate::element::ElementType;
use crate::reduce_op::ReduceOp;

pub(crate) const HELLO: usize = 40;
pub(crate) const FRAME: usize = 32;
pub(crate) const VERSION: u16 = 6;

/// Flag: an offer of shared memory follows the hello.
const OFFERS_MEMORY: u16 = 1;

const HELLO_MAGIC: [u8; 4] = *b"RZPG";
const FRAME_MAGIC: [u8; 4] = *b"RZPF";

/// Random number of a group; it is as secret as the store.
pub(crate) type GroupId = [u8; 16];

/// First bytes of the dialler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) world_size: u32,
    pub(crate) group: GroupId,
    /// `true` if an offer of shared memory follows.
    pub(crate) offers_memory: bool,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&HELLO_MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_ne_bytes());
        let flags = if self.offers_memory { OFFERS_MEMORY } else { 0 };
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.to.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.world_size.to_le_bytes());
        bytes[24..].copy_from_slice(&self.group);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HELLO]) -> Option<Self> {
        (bytes[..4] == HELLO_MAGIC).then(|| Self {
            version: u16::from_ne_bytes([bytes[4], bytes[5]]),
            from: number(bytes, 8),
            to: number(bytes, 12),
            world_size: number(bytes, 16),
            group: array(bytes, 24),
            offers_memory: u16::from_le_bytes([bytes[6], bytes[7]]) & OFFERS_MEMORY != 0,
        })
    }
}

/// Reason why a rank caused another rank to fail. The text follows "rank 3 …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AbortCause {
    /// The rank exited or left the group.
    #[error("exited or left the group")]
    Lost,
    /// The rank did not do its part in time.
    #[error("did not respond in time")]
    TimedOut,
    /// The rank called a different operation.
    #[error("made a different call")]
    Mismatch,
    /// The rank refused the rank that failed.
    #[error("refused its connection")]
    Refused,
    /// A thread in the rank interrupted the operation.
    #[error("was interrupted")]
    Interrupted,
    /// Any other reason.
    #[error("caused an error; see the errors of the other ranks")]
    Other,
}

impl AbortCause {
    /// All causes, in the order of their codes on the wire, from 1.
    const ALL: [Self; 6] = [
        Self::Lost,
        Self::TimedOut,
        Self::Mismatch,
        Self::Refused,
        Self::Other,
        Self::Interrupted,
    ];
}

/// Reason why a rank refuses another rank.
/// The text follows "refused this rank: …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GroupRefusal {
    /// The bytes are not a valid hello.
    #[error("the first message of this rank was not a valid hello")]
    NotAHello,
    /// The ranks use different versions of the protocol.
    #[error(
        "it uses version {expected} of the protocol; use the same version of rdzv on all ranks"
    )]
    Version {
        /// Version that the refusing rank speaks.
        expected: u16,
    },
    /// The ranks belong to different groups, perhaps from different runs.
    #[error("it belongs to another group; check whether the address is from an earlier run")]
    Group,
    /// The groups have different world sizes.
    #[error("its group has world size {expected}")]
    WorldSize {
        /// World size of the refusing rank.
        expected: u32,
    },
    /// The refusing rank is not the intended rank.
    #[error("it is rank {expected}; check that the address leads to the intended host")]
    Rank {
        /// Number of the refusing rank.
        expected: u32,
    },
    /// Another connection from the same rank exists.
    #[error("it already has a connection from a process with this rank")]
    Duplicate,
}

/// Frame after the hello.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Frame {
    /// The hello was accepted.
    ///
    /// Data is expected in the offered memory, or on the socket.
    Accept { memory: bool },
    /// The hello was refused.
    Refuse(GroupRefusal),
    /// The sender's group is broken.
    Abort { suspect: u32, cause: AbortCause },
    /// Values follow.
    Data { call: Call, payload: u32 },
    /// A message from one rank to another. If it is eager, its values follow.
    Message { envelope: Envelope, eager: bool },
    /// A receive matches the message of this number.
    ///
    /// An eager message no longer occupies memory at the receiver. The values of an announced
    /// message can be sent.
    Matched { number: u64 },
    /// Values of an announced message follow.
    Piece { number: u64, payload: u32 },
    /// The sender leaves the group, with nothing left to send.
    Leave,
}

/// Frame that a peer sent, or bytes that are not a frame.
pub(crate) type Sent = Result<Frame, [u8; FRAME]>;

/// Description of a message for its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) tag: u32,
    pub(crate) element: ElementType,
    pub(crate) elements: u64,
    /// Number of the message among all from this rank to the other, from 1.
    pub(crate) number: u64,
}

impl Envelope {
    /// Returns the length of the values in bytes; `None` if it exceeds any memory.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let elements = usize::try_from(self.elements).ok()?;
        elements.checked_mul(self.element.size())
    }
}

impl Frame {
    pub(crate) fn encode(&self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        bytes[..4].copy_from_slice(&FRAME_MAGIC);
        let (kind, detail, argument) = match *self {
            Self::Accept { memory } => (1, u8::from(memory), 0),
            Self::Refuse(refusal) => {
                let (code, expected) = refusal_code(refusal);
                (2, code, expected)
            }
            Self::Abort { suspect, cause } => (3, code_in(&AbortCause::ALL, cause), suspect),
            Self::Data { call, payload } => {
                let (code, reduce, argument) = operation_code(call.operation);
                bytes[6] = code_in(&ElementType::ALL, call.element);
                bytes[7] = reduce.map_or(0, |reduce| code_in(&ReduceOp::ALL, reduce));
                bytes[12..16].copy_from_slice(&payload.to_le_bytes());
                bytes[16..24].copy_from_slice(&call.sequence.to_le_bytes());
                bytes[24..].copy_from_slice(&call.elements.to_le_bytes());
                (4, code, argument)
            }
            Self::Message { envelope, eager } => {
                bytes[6] = code_in(&ElementType::ALL, envelope.element);
                bytes[16..24].copy_from_slice(&envelope.number.to_le_bytes());
                bytes[24..].copy_from_slice(&envelope.elements.to_le_bytes());
                (if eager { 6 } else { 5 }, 0, envelope.tag)
            }
            Self::Matched { number } => {
                bytes[16..24].copy_from_slice(&number.to_le_bytes());
                (7, 0, 0)
            }
            Self::Piece { number, payload } => {
                bytes[12..16].copy_from_slice(&payload.to_le_bytes());
                bytes[16..24].copy_from_slice(&number.to_le_bytes());
                (8, 0, 0)
            }
            Self::Leave => (9, 0, 0),
        };
        bytes[4] = kind;
        bytes[5] = detail;
        bytes[8..12].copy_from_slice(&argument.to_le_bytes());
        bytes
    }

    /// Parses a frame; returns the bytes themselves if they are not a frame.
    pub(crate) fn read(bytes: [u8; FRAME]) -> Sent {
        Self::decode(&bytes).ok_or(bytes)
    }

    pub(crate) fn decode(bytes: &[u8; FRAME]) -> Option<Self> {
        if bytes[..4] != FRAME_MAGIC {
            return None;
        }
        let (detail, argument) = (bytes[5], number(bytes, 8));
        Some(match bytes[4] {
            1 => Self::Accept {
                memory: detail != 0,
            },
            2 => Self::Refuse(refusal(detail, argument)?),
            3 => Self::Abort {
                suspect: argument,
                cause: coded(&AbortCause::ALL, detail)?,
            },
            4 => Self::Data {
                call: Call {
                    operation: operation(detail, coded(&ReduceOp::ALL, bytes[7]), argument)?,
                    element: coded(&ElementType::ALL, bytes[6])?,
                    elements: long_number(bytes, 24),
                    sequence: long_number(bytes, 16),
                },
                payload: number(bytes, 12),
            },
            kind @ (5 | 6) => Self::Message {
                envelope: Envelope {
                    tag: argument,
                    element: coded(&ElementType::ALL, bytes[6])?,
                    elements: long_number(bytes, 24),
                    number: long_number(bytes, 16),
                },
                eager: kind == 6,
            },
            7 => Self::Matched {
                number: long_number(bytes, 16),
            },
            8 => Self::Piece {
                number: long_number(bytes, 16),
                payload: number(bytes, 12),
            },
            9 => Self::Leave,
            _ => return None,
        })
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn long_number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn operation_code(operation: GroupOperation) -> (u8, Option<ReduceOp>, u32) {
    match operation {
        GroupOperation::Barrier => (1, None, 0),
        GroupOperation::Broadcast { root } => (2, None, root),
        GroupOperation::AllReduce { reduce } => (3, Some(reduce), 0),
        GroupOperation::MonitoredBarrier => (4, None, 0),
        GroupOperation::Scatter { root } => (5, None, root),
        GroupOperation::Gather { root } => (6, None, root),
        GroupOperation::AllGather => (7, None, 0),
        GroupOperation::AllGatherUnequal => (8, None, 0),
        GroupOperation::AllToAll => (9, None, 0),
        GroupOperation::AllToAllUnequal => (10, None, 0),
        GroupOperation::Reduce { reduce, root } => (11, Some(reduce), root),
        GroupOperation::ReduceScatter { reduce } => (12, Some(reduce), 0),
        // Messages have separate frames.
        GroupOperation::Send { .. } | GroupOperation::Receive { .. } => (0, None, 0),
    }
}

fn operation(code: u8, reduce: Option<ReduceOp>, argument: u32) -> Option<GroupOperation> {
    let root = argument;
    Some(match code {
        1 => GroupOperation::Barrier,
        2 => GroupOperation::Broadcast { root },
        3 => GroupOperation::AllReduce { reduce: reduce? },
        4 => GroupOperation::MonitoredBarrier,
        5 => GroupOperation::Scatter { root },
        6 => GroupOperation::Gather { root },
        7 => GroupOperation::AllGather,
        8 => GroupOperation::AllGatherUnequal,
        9 => GroupOperation::AllToAll,
        10 => GroupOperation::AllToAllUnequal,
        11 => GroupOperation::Reduce {
            reduce: reduce?,
            root,
        },
        12 => GroupOperation::ReduceScatter { reduce: reduce? },
        _ => return None,
    })
}

/// Returns the code of a value: its index in the list, counted from 1.
fn code_in<T: PartialEq>(all: &[T], one: T) -> u8 {
    let index = all.iter().position(|other| *other == one);
    index.map_or(0, |index| index as u8 + 1)
}

fn coded<T: Copy>(all: &[T], code: u8) -> Option<T> {
    all.get(usize::from(code).checked_sub(1)?).copied()
}

fn refusal_code(refusal: GroupRefusal) -> (u8, u32) {
    match refusal {
        GroupRefusal::NotAHello => (1, 0),
        GroupRefusal::Version { expected } => (2, u32::from(expected)),
        GroupRefusal::Group => (3, 0),
        GroupRefusal::WorldSize { expected } => (4, expected),
        GroupRefusal::Rank { expected } => (5, expected),
        GroupRefusal::Duplicate => (6, 0),
    }
}

fn refusal(code: u8, expected: u32) -> Option<GroupRefusal> {
    Some(match code {
        1 => GroupRefusal::NotAHello,
        2 => GroupRefusal::Version {
            expected: u16::try_from(expected).ok()?,
        },
        3 => GroupRefusal::Group,
        4 => GroupRefusal::WorldSize { expected },
        5 => GroupRefusal::Rank { expected },
        6 => GroupRefusal::Duplicate,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operations() -> impl Strategy<Value = GroupOperation> {
        let codes = (
            1..=12_u8,
            prop::sample::select(&ReduceOp::ALL[..]),
            any::<u32>(),
        );
        codes.prop_map(|(code, reduce, root)| operation(code, Some(reduce), root).unwrap())
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let elements = prop::sample::select(&ElementType::ALL[..]);
        let calls = (operations(), elements, any::<u64>(), any::<u64>()).prop_map(
            |(operation, element, elements, sequence)| Call {
                operation,
                element,
                elements,
                sequence,
            },
        );
        let envelopes = (
            any::<u32>(),
            prop::sample::select(&ElementType::ALL[..]),
            any::<u64>(),
            any::<u64>(),
        )
            .prop_map(|(tag, element, elements, number)| Envelope {
                tag,
                element,
                elements,
                number,
            });
        prop_oneof![
            (envelopes, any::<bool>())
                .prop_map(|(envelope, eager)| Frame::Message { envelope, eager }),
            any::<u64>().prop_map(|number| Frame::Matched { number }),
            (any::<u64>(), any::<u32>())
                .prop_map(|(number, payload)| Frame::Piece { number, payload }),
            Just(Frame::Leave),
            any::<bool>().prop_map(|memory| Frame::Accept { memory }),
            (1..=6_u8, any::<u16>()).prop_map(|(code, expected)| {
                let expected = u32::from(expected);
                Frame::Refuse(refusal(code, expected).unwrap())
            }),
            (1..=6_u8, any::<u32>()).prop_map(|(code, suspect)| Frame::Abort {
                suspect,
                cause: coded(&AbortCause::ALL, code).unwrap()
            }),
            (calls, any::<u32>()).prop_map(|(call, payload)| Frame::Data { call, payload }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(frame in frames()) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }

        #[test]
        fn hellos_come_back(
            version: u16, from: u32, to: u32, world_size: u32, group: GroupId, offers_memory: bool,
        ) {
            let hello = Hello { version, from, to, world_size, group, offers_memory };
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }

        #[test]
        fn any_bytes_are_a_frame_or_refused(mut bytes: [u8; FRAME], framed: bool, kind in 0..11_u8) {
            if framed {
                bytes[..4].copy_from_slice(&FRAME_MAGIC);
                bytes[4] = kind;
            }
            if let Some(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(Frame::decode(&frame.encode()), Some(frame));
            }
        }
    }

    #[test]
    fn a_request_of_another_protocol_is_no_hello() {
        assert_eq!(
            Hello::decode(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:12345\r\n\r"),
            None
        );
    }
}
