//! Frames between members: an opcode, the body's length (`u64`), and the body.
//!
//! Numbers are little-endian.
//!
//! | opcode | frame | body |
//! |---|---|---|
//! | 0x40 | [`ControlFrame::Hello`] | see below |
//! | 0x41 | [`ControlFrame::Invite`] | cluster `u128`, epoch `u64`, voter index `u8`, voters |
//! | 0x42 | message | one message of Raft; see `message.rs` |
//! | 0x43 | part of a snapshot | index, term of the index, offset, bytes |
//! | 0x44 | [`ControlFrame::WhoCoordinates`] | nothing |
//! | 0x45 | [`ControlFrame::Elsewhere`] | cluster `u128`, epoch `u64`, term `u64`, address |
//! | 0x46 | [`ControlFrame::Leave`] | nothing |
//! | 0x47 | [`ControlFrame::Left`] | nothing |
//! | 0x48 | [`ControlFrame::Members`] | count `u8`, for each its voter `u64` (0: not known) and address |
//!
//! A hello contains: cluster `u128`, epoch `u64`, voter `u64`, flags `u8`, address. The flags are 1
//! for a store, 2 if an [`OfRun`] follows, and 4 for a voter. An [`OfRun`] contains: run, rounds
//! `u32`, two `u64`.
//!
//! A text is its length as a `u8` and its bytes. No body is longer than [`FRAME_BOUND`]. A receiver
//! reserves no memory for a length that a peer announces. It stores only bytes that have arrived.

pub(crate) mod message;

use bytes::{Buf as _, BufMut as _};

use crate::voter::VoterId;

/// Opcodes of the frames.
pub mod opcode {
    /// Opcode of [`super::ControlFrame::Hello`].
    pub const HELLO: u8 = 0x40;
    /// Opcode of [`super::ControlFrame::Invite`].
    pub const INVITE: u8 = 0x41;
    /// Opcode of a Raft message, for [`crate::Consensus`].
    pub const MESSAGE: u8 = 0x42;
    /// Opcode of a part of a snapshot, for [`crate::Consensus`].
    pub const SNAPSHOT_PART: u8 = 0x43;
    /// Opcode of [`super::ControlFrame::WhoCoordinates`].
    pub const WHO_COORDINATES: u8 = 0x44;
    /// Opcode of [`super::ControlFrame::Elsewhere`].
    pub const ELSEWHERE: u8 = 0x45;
    /// Opcode of [`super::ControlFrame::Leave`].
    pub const LEAVE: u8 = 0x46;
    /// Opcode of [`super::ControlFrame::Left`].
    pub const LEFT: u8 = 0x47;
    /// Opcode of [`super::ControlFrame::Members`].
    pub const MEMBERS: u8 = 0x48;
}

/// Maximum length of the body of a frame, in bytes.
pub const FRAME_BOUND: usize = 1 << 20;

/// Maximum length of a command, in bytes.
pub const COMMAND_BOUND: usize = 256 << 10;

/// Maximum length of the state in a snapshot, in bytes.
pub const SNAPSHOT_BOUND: usize = 64 << 20;

/// Exclusive bound of the terms, indexes and epochs of peers.
pub(crate) const NUMBER_BOUND: u64 = 1 << 62;

/// Flag of a hello: the sender is a store.
const STORE: u8 = 1;
const RUN: u8 = 2;
const VOTES: u8 = 4;

/// Maximum number of voters in a frame.
const VOTERS_BOUND: usize = 2 * crate::configuration::VOTER_INDICES as usize;

/// Error in the encoding of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConsensusWireError {
    /// Body that ends too early.
    #[error("the body of the frame ends too early")]
    Short,
    /// Body that is followed by more bytes.
    #[error("the body of the frame is followed by more bytes")]
    Long,
    /// Opcode that no frame has.
    #[error("no frame has the opcode {0:#04x}")]
    Opcode(u8),
    /// Field with an impossible value.
    #[error("the frame has an invalid {0}")]
    Field(&'static str),
}

impl From<bytes::TryGetError> for ConsensusWireError {
    fn from(_: bytes::TryGetError) -> Self {
        Self::Short
    }
}

/// Part of a hello that describes a group which others may join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfRun {
    /// Run that the group serves.
    pub run: String,
    /// Highest announced round that the sender knows, plus 1; 0 if it knows none.
    pub rounds: u32,
    /// Position in the log that the sender has applied, or remembers.
    ///
    /// The first number orders the logs of the cluster, the second is an index. Both are 0 if
    /// there is none.
    pub applied: (u64, u64),
    /// `true` if the sender is or was a voter of that group, as far as it knows.
    pub votes: bool,
}

/// Frame other than a Raft message; the driver handles it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlFrame {
    /// First frame of each side, which is sent again after changes.
    Hello {
        /// Cluster of the sender; 0 if it is in no group.
        cluster: u128,
        /// Epoch of the sender.
        epoch: u64,
        /// Id of the sender.
        voter: VoterId,
        /// `true` if the sender is a store, beside which no workers run.
        is_store: bool,
        /// Endpoint (`host:port`) at which the sender listens; at most 255 bytes.
        address: String,
        /// Description of a group that others may join.
        of_run: Option<OfRun>,
    },
    /// Invitation: the receiver may become a member.
    Invite {
        /// Cluster of the group.
        cluster: u128,
        /// Epoch of the group.
        epoch: u64,
        /// Voter index of the receiver.
        voter_index: u8,
        /// First voters, if the receiver is one of them; otherwise the current voters.
        voters: Vec<VoterId>,
    },
    /// Question for the endpoint of the coordinator.
    WhoCoordinates,
    /// Answer with the endpoint of the coordinator.
    Elsewhere {
        /// Cluster of the coordinator; 0 if it is unknown.
        cluster: u128,
        /// Epoch of the coordinator.
        epoch: u64,
        /// Term of the coordinator.
        term: u64,
        /// Endpoint (`host:port`) of the coordinator; empty if none is known.
        address: String,
    },
    /// Notice that the sender is ending; the others must stop counting on it.
    Leave,
    /// Notice that the leaving receiver is no longer a member.
    Left,
    /// Members of a group that others may join, with the `host:port` of each.
    ///
    /// The sender is the leader, or a process that remembers the members.
    Members(Vec<(Option<VoterId>, String)>),
}

impl ControlFrame {
    /// Decodes the frame with this opcode and body.
    pub fn read(opcode: u8, mut body: &[u8]) -> Result<Self, ConsensusWireError> {
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
                voter_index: body.try_get_u8()?,
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
                    return Err(ConsensusWireError::Field("number of members"));
                }
                let mut member = || -> Result<_, ConsensusWireError> {
                    let voter = VoterId::new(body.try_get_u64_le()?);
                    Ok((voter, text(body, "address of a member")?))
                };
                Self::Members((0..count).map(|_| member()).collect::<Result<_, _>>()?)
            }
            other => return Err(ConsensusWireError::Opcode(other)),
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
                let run_flag = of_run
                    .as_ref()
                    .map_or(0, |of_run| if of_run.votes { RUN | VOTES } else { RUN });
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
                voter_index,
                voters,
            } => {
                body.put_u128_le(*cluster);
                body.put_u64_le(*epoch);
                body.put_u8(*voter_index);
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

/// Returns the whole frame with this body.
pub(crate) fn frame(opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(9 + body.len());
    frame.put_u8(opcode);
    frame.put_u64_le(body.len() as u64);
    frame.extend_from_slice(body);
    frame
}

fn end(body: &[u8]) -> Result<(), ConsensusWireError> {
    if body.is_empty() {
        Ok(())
    } else {
        Err(ConsensusWireError::Long)
    }
}

fn number(body: &mut &[u8], field: &'static str) -> Result<u64, ConsensusWireError> {
    let number = body.try_get_u64_le()?;
    if number < NUMBER_BOUND {
        Ok(number)
    } else {
        Err(ConsensusWireError::Field(field))
    }
}

fn voter(body: &mut &[u8]) -> Result<VoterId, ConsensusWireError> {
    VoterId::new(body.try_get_u64_le()?).ok_or(ConsensusWireError::Field("voter"))
}

fn voters(body: &mut &[u8]) -> Result<Vec<VoterId>, ConsensusWireError> {
    let count = usize::from(body.try_get_u8()?);
    if count > VOTERS_BOUND {
        return Err(ConsensusWireError::Field("number of voters"));
    }
    (0..count).map(|_| voter(body)).collect()
}

fn put_voters(body: &mut Vec<u8>, voters: impl ExactSizeIterator<Item = u64>) {
    body.put_u8(u8::try_from(voters.len()).unwrap_or(u8::MAX));
    voters.for_each(|voter| body.put_u64_le(voter));
}

fn take<'a>(body: &mut &'a [u8], count: usize) -> Result<&'a [u8], ConsensusWireError> {
    let (taken, rest) = body
        .split_at_checked(count)
        .ok_or(ConsensusWireError::Short)?;
    *body = rest;
    Ok(taken)
}

fn text(body: &mut &[u8], field: &'static str) -> Result<String, ConsensusWireError> {
    let count = usize::from(body.try_get_u8()?);
    let text =
        std::str::from_utf8(take(body, count)?).map_err(|_| ConsensusWireError::Field(field))?;
    Ok(text.to_owned())
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(255)];
    body.put_u8(u8::try_from(text.len()).unwrap_or(u8::MAX));
    body.extend_from_slice(text.as_bytes());
}
