//! Inputs and outputs of the machine.

use bytes::Bytes;
use rdzv_core::time::{Mono, Now};

use crate::configuration::{Change, Configuration};
use crate::voter::VoterId;

/// Something that happened.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A command is to be replicated. [`Output::Dropped`] with its token if it is not even begun.
    Propose {
        /// The driver's name for the command.
        token: u64,
        /// At most [`crate::wire::COMMAND_BOUND`] bytes.
        command: &'a [u8],
    },
    /// A frame of a peer that has proved to be a member of the cluster.
    Received {
        /// The peer at the other end of the connection.
        from: VoterId,
        /// The opcode of the frame; see [`crate::wire::opcode`].
        opcode: u8,
        /// The body of the frame.
        payload: &'a [u8],
    },
    /// A connection to a peer has been made.
    PeerUp(VoterId),
    /// The connection to a peer has ended.
    PeerDown(VoterId),
    /// Asks whether this member leads, as of now. [`Output::Confirmed`] with the token when a majority says so
    /// and everything that was committed before is applied; else [`Output::Unconfirmed`].
    Confirm(u64),
    /// The members are to change.
    Change(&'a Change),
    /// Leadership goes to a voter; to the one with the newest log if none is named.
    Transfer(Option<VoterId>),
    /// The state after everything that was applied, in answer to [`Output::TakeSnapshot`].
    Snapshot(&'a [u8]),
    /// The deadline has come.
    Tick,
}

/// Something to do, or something to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A configuration is in the log now. The note is to have it before any later output is acted upon.
    Note(Configuration),
    /// A frame for a peer. It may be lost if there is no connection.
    Send {
        /// The peer.
        to: VoterId,
        /// The whole frame: opcode, length and body.
        frame: Vec<u8>,
    },
    /// A command is committed.
    Apply {
        /// Its place in the log.
        index: u64,
        /// The time of the group when it was proposed. Never less than that of the command before.
        at: Now,
        /// The command.
        command: Bytes,
    },
    /// The state is replaced by another member's.
    Restore {
        /// The last command in it.
        index: u64,
        /// The time of the last command in it.
        at: Now,
        /// The state, as another member's driver gave it.
        state: Bytes,
    },
    /// The state is to be given as [`Input::Snapshot`] next, so that the log can be truncated.
    TakeSnapshot,
    /// A configuration is in force.
    Configuration(Configuration),
    /// The role of this member, or what it knows of the leader, has changed.
    Role(Role),
    /// This member led when the question was asked, and has applied everything that was committed then.
    Confirmed(u64),
    /// Nothing is known of that.
    Unconfirmed(u64),
    /// A command was not begun: this member does not lead, hands over, or has too much uncommitted.
    Dropped(u64),
    /// A change of members was not begun, for this reason.
    Unchanged(&'static str),
    /// The connection to a peer is to be closed, for this reason.
    Close {
        /// The peer.
        peer: VoterId,
        /// A sentence.
        reason: String,
    },
}

/// The part of a member in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// The term.
    pub term: u64,
    /// The leader of the term, as far as this member knows.
    pub leader: Option<VoterId>,
    /// Whether that is this member.
    pub leads: bool,
    /// At the beginning of a leader's term: the newest moment at which one of the voters that elected it had heard from an
    /// earlier leader, on this member's clock; `None` if none had.
    pub heard: Option<Mono>,
}
