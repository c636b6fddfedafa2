//! Inputs and outputs of the machine.

use bytes::Bytes;
use rdzv_core::time::{Mono, Now};

use crate::configuration::{Configuration, VoterChange};
use crate::voter::VoterId;

/// Event that the machine handles.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Replicate a command.
    ///
    /// [`Output::Dropped`] with its token follows if the replication does not start.
    Propose {
        /// Driver's id of the command.
        token: u64,
        /// Bytes of the command; at most [`crate::wire::COMMAND_BOUND`].
        command: &'a [u8],
    },
    /// A frame arrived from a peer that has proved to be a member of the cluster.
    Received {
        /// Peer at the other end of the connection.
        from: VoterId,
        /// Opcode of the frame; see [`crate::wire::opcode`].
        opcode: u8,
        /// Body of the frame.
        payload: &'a [u8],
    },
    /// A connection to a peer was opened.
    PeerUp(VoterId),
    /// The connection to a peer has closed.
    PeerDown(VoterId),
    /// Ask whether this member leads now.
    ///
    /// [`Output::Confirmed`] with the token follows when a majority agrees and everything committed
    /// before is applied. Otherwise [`Output::Unconfirmed`] follows.
    Confirm(u64),
    /// Change the members.
    Change(&'a VoterChange),
    /// Transfer the leadership to this voter.
    ///
    /// If `None`, the voter with the newest log becomes the leader.
    Transfer(Option<VoterId>),
    /// State after all applied commands, as an answer to [`Output::TakeSnapshot`].
    Snapshot(&'a [u8]),
    /// The deadline has passed.
    Tick,
}

/// Action or notification for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A configuration was appended to the log, or arrived in a snapshot.
    ///
    /// Record it before acting on any later output.
    Note(Configuration),
    /// Send a frame to a peer; it may be lost if there is no connection.
    Send {
        /// Receiver of the frame.
        to: VoterId,
        /// The whole frame: opcode, length and body.
        frame: Vec<u8>,
    },
    /// Apply a committed command.
    Apply {
        /// Index of the command in the log.
        index: u64,
        /// Time of the group when the command was proposed.
        ///
        /// It is never earlier than the time of the previous command.
        at: Now,
        /// The command.
        command: Bytes,
    },
    /// Replace the state by the state of another member.
    Restore {
        /// Index of the last log entry that the state contains.
        index: u64,
        /// Time of the last command in the state.
        at: Now,
        /// State, as the driver of another member supplied it.
        state: Bytes,
    },
    /// Supply the state as [`Input::Snapshot`].
    ///
    /// The log is then truncated, and members that need a newer snapshot receive it.
    TakeSnapshot,
    /// A configuration is in force.
    Configuration(Configuration),
    /// The role of this member, or its knowledge of the leader, has changed.
    Role(Role),
    /// This member led when the driver asked.
    ///
    /// It has applied everything that was committed at that time.
    Confirmed(u64),
    /// This member does not lead, or lost the leadership before a majority agreed.
    Unconfirmed(u64),
    /// The replication of a command did not start.
    ///
    /// This member does not lead, hands over, or has too much that is uncommitted. Or the command
    /// exceeds [`crate::wire::COMMAND_BOUND`].
    Dropped(u64),
    /// A change of members did not start, for this reason.
    Unchanged(&'static str),
    /// Close the connection to a peer.
    Close {
        /// Peer whose connection to close.
        peer: VoterId,
        /// Reason, as a sentence.
        reason: String,
    },
}

/// Role of a member in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// Current term.
    pub term: u64,
    /// Leader of the term, as far as this member knows.
    pub leader: Option<VoterId>,
    /// `true` if this member is the leader.
    pub leads: bool,
    /// Time at which an electing voter last received from an earlier leader.
    ///
    /// The newest such time counts, on this member's clock. It is set at the beginning of a
    /// leader's term. `None` if this member does not lead, or if no voter had received from a
    /// leader.
    pub heard: Option<Mono>,
}
