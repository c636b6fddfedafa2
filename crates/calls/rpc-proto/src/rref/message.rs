//! What workers say to one another about references.

use serde::{Deserialize, Serialize};

use super::ident::{ForkId, Member, RRefId};

/// One control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Control {
    /// User to owner: enter my fork, which another user gave me.
    ForkRequest {
        /// The value.
        rref: RRefId,
        /// My fork.
        fork: ForkId,
        /// Who asked for the value, if you may not have heard of that yet.
        creator: Option<Member>,
    },
    /// Owner to user: your fork is entered.
    ForkAck {
        /// The fork.
        fork: ForkId,
    },
    /// Owner to user: there is no such value any more.
    ForkRefused {
        /// The fork.
        fork: ForkId,
    },
    /// Receiver to parent: the owner knows of the fork; you need not hold on any longer.
    ChildAccept {
        /// The fork.
        fork: ForkId,
    },
    /// User to owner: I am done with it.
    UserDelete {
        /// The value.
        rref: RRefId,
        /// My fork.
        fork: ForkId,
    },
    /// Creator to owner: forget that I asked for this value, also if my call should still come.
    Abandon {
        /// The value.
        rref: RRefId,
        /// My fork.
        fork: ForkId,
    },
    /// Owner to creator: the function has ended.
    Completed {
        /// The creator's fork.
        fork: ForkId,
        /// `true` if the function failed. The value is its error then.
        failed: bool,
    },
    /// Owner to creator: others refer to this value of yours; will you still ask me for it?
    CreationAsk {
        /// The value.
        rref: RRefId,
    },
    /// Creator to owner: I have asked before, or never will.
    CreationOver {
        /// The value.
        rref: RRefId,
    },
    /// Parent to receiver: has this fork arrived?
    ForkAsk {
        /// The fork.
        fork: ForkId,
    },
    /// Receiver to parent: it has.
    ForkPresent {
        /// The fork.
        fork: ForkId,
    },
    /// Receiver to parent: I do not have it, and will not take it any more.
    ForkUnknown {
        /// The fork.
        fork: ForkId,
    },
    /// Anybody: are you there?
    Probe,
}

/// Control messages to one member, in one frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Batch {
    /// Who says it.
    pub from: Member,
    /// To whom. Another life of the same worker ignores it.
    pub to: Member,
    /// The number of the first message; the others follow.
    pub first: u64,
    /// All messages with lower numbers have come from the other side.
    pub received: u64,
    /// The sender waits for the acknowledgement.
    pub urgent: bool,
    /// The receiver was taken for lost: none of its forks, and none of its values, is valid here.
    pub disowned: bool,
    /// The messages.
    pub messages: Vec<Control>,
}
