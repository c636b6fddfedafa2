//! Frames between members: an opcode, the length of the body as a `u64`, the body. Numbers are little-endian.
//!
//! | opcode | frame | body |
//! |---|---|---|
//! | 0x40 | [`Frame::Hello`] | cluster `u128`, epoch `u64`, voter `u64`, flags `u8` (1: a store, 2: [`OfRun`] follows, 4: votes), address; run, rounds `u32`, two `u64` |
//! | 0x41 | [`Frame::Invite`] | cluster `u128`, epoch `u64`, place `u8`, voters |
//! | 0x42 | message | one message of Raft; see `message.rs` |
//! | 0x43 | part of a snapshot | term, index, term of the index, offset, bytes |
//! | 0x44 | [`Frame::WhoCoordinates`] | nothing |
//! | 0x45 | [`Frame::Elsewhere`] | cluster `u128`, epoch `u64`, term `u64`, address |
//! | 0x46 | [`Frame::Leave`] | nothing |
//! | 0x47 | [`Frame::Left`] | nothing |
//! | 0x48 | [`Frame::Members`] | count `u8`, for each its voter `u64` (0: not known) and address |
//!
//! A text is its length as `u8` and its bytes. No body is longer than [`FRAME_BOUND`], and nothing
//! is reserved for a number that a peer has named: what is kept of a frame is at most what has
//! come.

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
    /// [`super::Frame::Members`].
    pub const MEMBERS: u8 = 0x48;
}

/// The longest body of a frame, in bytes.
pub const FRAME_BOUND: usize = 1 << 20;

/// The longest command, in bytes.
pub const COMMAND_BOUND: usize = 256 << 10;

/// The longest state in a snapshot, in bytes.
pub const SNAPSHOT_BOUND: usize = 64 << 20;

/// Terms, indices and epochs of peers are below.
pub(crate) const NUMBER_BOUND: u64 = 1 << 62;

/// The flags of a hello.
const STORE: u8 = 1;
const RUN: u8 = 2;
const VOTES: u8 = 4;

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

/// The part of a hello that members of groups have which others may join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfRun {
    /// The run that the group is there for.
    pub run: String,
    /// The number of rounds that the sender knows of.
    pub rounds: u32,
    /// The part of the log that the sender has applied, or remembers: the number of logs before it, and an index; zeros if there is none.
    pub applied: (u64, u64),
    /// The sender was a voter of that group, as far as it knows.
    pub votes: bool,
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
        /// Of a member of a group that others may join.
        of_run: Option<OfRun>,
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
    /// The members of a group that others may join, and `host:port` of each: from its leader, or from a process that remembers
    /// them.
    Members(Vec<(Option<VoterId>, String)>),
}

impl Frame {
    /// The frame with this opcode and body.
    pub fn read(opcode: u8, mut body: &[u8]) -> Result<Self, WireError> {
        let body = &mut body;
        let frame = match opcode {
            opcode::HELLO => {
                let cluster = body.try_get_u128_le()?;
                let (epoch, voter) = (number(body, "epoch")?, voter(body)?);
                let flags = body.try_get_u8()?;
                Self::Hello {
                    cluster,
                    epoch,
                    voter,
                    is_store: flags & STORE != 0,
                    address: text(body, "address")?,
                    of_run: match flags & RUN {
                        0 => None,
                        _ => Some(OfRun {
                            run: text(body, "run")?,
                            rounds: body.try_get_u32_le()?,
                            applied: (number(body, "log")?, number(body, "index")?),
                            votes: flags & VOTES != 0,
                        }),
                    },
                }
            }
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
            opcode::MEMBERS => {
                let count = usize::from(body.try_get_u8()?);
                if count > VOTERS_BOUND {
                    return Err(WireError::Field("number of members"));
                }
                let mut member = || -> Result<_, WireError> {
                    let voter = VoterId::new(body.try_get_u64_le()?);
                    Ok((voter, text(body, "address of a member")?))
                };
                Self::Members((0..count).map(|_| member()).collect::<Result<_, _>>()?)
            }
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
                of_run,
            } => {
                body.put_u128_le(*cluster);
                body.put_u64_le(*epoch);
                body.put_u64_le(voter.number());
                let run_flag = of_run.as_ref().map_or(0, |of_run| match of_run.votes {
                    true => RUN | VOTES,
                    false => RUN,
                });
                body.put_u8(run_flag | (u8::from(*is_store) * STORE));
                put_text(&mut body, address);
                if let Some(OfRun {
                    run,
                    rounds,
                    applied,
                    ..
                }) = of_run
                {
                    put_text(&mut body, run);
                    body.put_u32_le(*rounds);
                    body.put_u64_le(applied.0);
                    body.put_u64_le(applied.1);
                }
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
            Self::Members(members) => {
                let members = &members[..members.len().min(VOTERS_BOUND)];
                body.put_u8(members.len() as u8);
                for (voter, address) in members {
                    body.put_u64_le(voter.map_or(0, VoterId::number));
                    put_text(&mut body, address);
                }
                opcode::MEMBERS
            }
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
