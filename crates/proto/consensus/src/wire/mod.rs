//! Frames between members: an opcode, the length of the body as a `u64`, the body. Numbers are little-endian.
//!
//! | opcode | frame | body |
//! |---|---|---|
//! | 0x40 | [`Frame::Hello`] | cluster `u128`, epoch `u64`, voter `u64`, store `u8`, address |
//! | 0x41 | [`Frame::Invite`] | cluster `u128`, epoch `u64`, place `u8`, voters |
//! | 0x42 | message | one message of Raft; see `message.rs` |
//! | 0x43 | part of a snapshot | term, index, term of the index, offset, bytes |
//! | 0x44 | [`Frame::WhoCoordinates`] | nothing |
//! | 0x45 | [`Frame::Elsewhere`] | cluster `u128`, epoch `u64`, term `u64`, address |
//! | 0x46 | [`Frame::Leave`] | nothing |
//! | 0x47 | [`Frame::Left`] | nothing |
//!
//! A text is its length as `u8` and its bytes. No body is longer than [`FRAME_BOUND`], and nothing is reserved for a number
//! that a peer has named: what is kept of a frame is at most what has come.

pub(crate) mod message;

use bytes::{Buf as _, BufMut as _};

use crate::voter::VoterId;

/// The opcodes.
pub mod opcode {
    /// [`super::Frame::Hello`].
    pub const HELLO: u8 = 0x40;
    /// [`super::Frame::Invite`].
    pub const INVITE: u8 = 0x41;
    /// A message of Raft, for [`crate::Consensus`].
    pub const MESSAGE: u8 = 0x42;
    /// A part of a snapshot, for [`crate::Consensus`].
    pub const SNAPSHOT_PART: u8 = 0x43;
    /// [`super::Frame::WhoCoordinates`].
    pub const WHO_COORDINATES: u8 = 0x44;
    /// [`super::Frame::Elsewhere`].
    pub const ELSEWHERE: u8 = 0x45;
    /// [`super::Frame::Leave`].
    pub const LEAVE: u8 = 0x46;
    /// [`super::Frame::Left`].
    pub const LEFT: u8 = 0x47;
}

/// The longest body of a frame, in bytes.
pub const FRAME_BOUND: usize = 1 << 20;

/// The longest command, in bytes.
pub const COMMAND_BOUND: usize = 256 << 10;

/// The longest state in a snapshot, in bytes.
pub const SNAPSHOT_BOUND: usize = 64 << 20;

/// Terms, indices and epochs of peers are below.
pub(crate) const NUMBER_BOUND: u64 = 1 << 62;

/// Most voters in a frame.
const VOTERS_BOUND: usize = 2 * crate::configuration::PLACES as usize;

/// A frame cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The body ends too early.
    #[error("the body of the frame ends too early")]
    Short,
    /// The body goes on after its end.
    #[error("the body of the frame goes on after its end")]
    Long,
    /// No frame has this opcode.
    #[error("no frame has the opcode {0:#04x}")]
    Opcode(u8),
    /// A field has a value that it cannot have.
    #[error("the {0} of the frame has a value that it cannot have")]
    Field(&'static str),
}

impl From<bytes::TryGetError> for WireError {
    fn from(_: bytes::TryGetError) -> Self {
        Self::Short
    }
}

/// A frame that is no message of Raft: the driver's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of each side.
    Hello {
        /// The cluster of the sender; 0 if it is in none.
        cluster: u128,
        /// The epoch of the sender.
        epoch: u64,
        /// The member that the sender is.
        voter: VoterId,
        /// It is a store, beside which no workers run.
        is_store: bool,
        /// `host:port` at which it listens; at most 255 bytes.
        address: String,
    },
    /// The receiver may become a member.
    Invite {
        /// The cluster.
        cluster: u128,
        /// The epoch.
        epoch: u64,
        /// The receiver's place.
        place: u8,
        /// The voters of now.
        voters: Vec<VoterId>,
    },
    /// A question for the coordinator.
    WhoCoordinates,
    /// The coordinator, for those who ask.
    Elsewhere {
        /// The cluster; 0 if none is known.
        cluster: u128,
        /// The epoch.
        epoch: u64,
        /// The term.
        term: u64,
        /// `host:port` of the coordinator; empty if none is known.
        address: String,
    },
    /// The sender is about to end, and is not to be counted any more.
    Leave,
    /// The receiver, which leaves, is no member any more.
    Left,
}

impl Frame {
    /// The frame with this opcode and body.
    pub fn read(opcode: u8, mut body: &[u8]) -> Result<Self, WireError> {
        let body = &mut body;
        let frame = match opcode {
            opcode::HELLO => Self::Hello {
                cluster: body.try_get_u128_le()?,
                epoch: number(body, "epoch")?,
                voter: voter(body)?,
                is_store: body.try_get_u8()? != 0,
                address: text(body, "address")?,
            },
            opcode::INVITE => Self::Invite {
                cluster: body.try_get_u128_le()?,
                epoch: number(body, "epoch")?,
                place: body.try_get_u8()?,
                voters: voters(body)?,
            },
            opcode::WHO_COORDINATES => Self::WhoCoordinates,
            opcode::ELSEWHERE => Self::Elsewhere {
                cluster: body.try_get_u128_le()?,
                epoch: number(body, "epoch")?,
                term: number(body, "term")?,
                address: text(body, "address")?,
            },
            opcode::LEAVE => Self::Leave,
            opcode::LEFT => Self::Left,
            other => return Err(WireError::Opcode(other)),
        };
        end(body)?;
        Ok(frame)
    }

    /// Appends the whole frame. Texts are cut after 255 bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let opcode = match self {
            Self::Hello {
                cluster,
                epoch,
                voter,
                is_store,
                address,
            } => {
                body.put_u128_le(*cluster);
                body.put_u64_le(*epoch);
                body.put_u64_le(voter.number());
                body.put_u8(u8::from(*is_store));
                put_text(&mut body, address);
                opcode::HELLO
            }
            Self::Invite {
                cluster,
                epoch,
                place,
                voters,
            } => {
                body.put_u128_le(*cluster);
                body.put_u64_le(*epoch);
                body.put_u8(*place);
                put_voters(&mut body, voters.iter().map(|voter| voter.number()));
                opcode::INVITE
            }
            Self::WhoCoordinates => opcode::WHO_COORDINATES,
            Self::Elsewhere {
                cluster,
                epoch,
                term,
                address,
            } => {
                body.put_u128_le(*cluster);
                body.put_u64_le(*epoch);
                body.put_u64_le(*term);
                put_text(&mut body, address);
                opcode::ELSEWHERE
            }
            Self::Leave => opcode::LEAVE,
            Self::Left => opcode::LEFT,
        };
        out.extend(frame(opcode, &body));
    }
}

/// The whole frame with this body.
pub(crate) fn frame(opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(9 + body.len());
    frame.put_u8(opcode);
    frame.put_u64_le(body.len() as u64);
    frame.extend_from_slice(body);
    frame
}

fn end(body: &[u8]) -> Result<(), WireError> {
    match body.is_empty() {
        true => Ok(()),
        false => Err(WireError::Long),
    }
}

fn number(body: &mut &[u8], field: &'static str) -> Result<u64, WireError> {
    let number = body.try_get_u64_le()?;
    match number < NUMBER_BOUND {
        true => Ok(number),
        false => Err(WireError::Field(field)),
    }
}

fn voter(body: &mut &[u8]) -> Result<VoterId, WireError> {
    VoterId::new(body.try_get_u64_le()?).ok_or(WireError::Field("voter"))
}

fn voters(body: &mut &[u8]) -> Result<Vec<VoterId>, WireError> {
    let count = usize::from(body.try_get_u8()?);
    if count > VOTERS_BOUND {
        return Err(WireError::Field("number of voters"));
    }
    (0..count).map(|_| voter(body)).collect()
}

fn put_voters(body: &mut Vec<u8>, voters: impl ExactSizeIterator<Item = u64>) {
    body.put_u8(u8::try_from(voters.len()).unwrap_or(u8::MAX));
    voters.for_each(|voter| body.put_u64_le(voter));
}

fn take<'a>(body: &mut &'a [u8], count: usize) -> Result<&'a [u8], WireError> {
    let (taken, rest) = body.split_at_checked(count).ok_or(WireError::Short)?;
    *body = rest;
    Ok(taken)
}

fn text(body: &mut &[u8], field: &'static str) -> Result<String, WireError> {
    let count = usize::from(body.try_get_u8()?);
    let text = std::str::from_utf8(take(body, count)?).map_err(|_| WireError::Field(field))?;
    Ok(text.to_owned())
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(255)];
    body.put_u8(u8::try_from(text.len()).unwrap_or(u8::MAX));
    body.extend_from_slice(text.as_bytes());
}
