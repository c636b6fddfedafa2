//! Control messages about references, and batches of them.

use serde::{Deserialize, Serialize};

use super::ident::{ForkId, Member, RRefId};

/// One control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Control {
    /// User to owner: enter my fork, which another user gave me.
    ForkRequest {
        /// Id of the value.
        rref: RRefId,
        /// Fork of the sender.
        fork: ForkId,
        /// Member that asked for the value, if the owner may not know this yet.
        creator: Option<Member>,
    },
    /// Owner to user: your fork is entered.
    ForkAck(ForkId),
    /// Owner to user: the value does not exist any more.
    ForkRefused(ForkId),
    /// Receiver to parent: the owner knows the fork, so you need not keep yours.
    ChildAccept(ForkId),
    /// User to owner: I have released my fork.
    UserDelete {
        /// Id of the value.
        rref: RRefId,
        /// Fork of the sender.
        fork: ForkId,
    },
    /// Creator to owner: forget my request for this value.
    ///
    /// This holds even if the call still arrives.
    Abandon {
        /// Id of the value.
        rref: RRefId,
        /// Fork of the sender.
        fork: ForkId,
    },
    /// Owner to creator: the function has ended.
    Completed {
        /// Fork of the creator.
        fork: ForkId,
        /// `true` if the function failed. The value is its error then.
        failed: bool,
    },
    /// Owner to creator: will you still ask for this value?
    ///
    /// Other members refer to it.
    CreationAsk(RRefId),
    /// Creator to owner: I have already asked for the value, or never will.
    CreationOver(RRefId),
    /// Parent to receiver: has this fork arrived?
    ForkAsk(ForkId),
    /// Receiver to parent: the fork has arrived.
    ForkPresent(ForkId),
    /// Receiver to parent: I do not have the fork, and will refuse it from now on.
    ForkUnknown(ForkId),
    /// Any member: are you there?
    Probe,
}

/// Control messages to one member, in one frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Batch {
    /// Sender of the batch.
    pub from: Member,
    /// Receiver of the batch. Another life of the same worker ignores it.
    pub to: Member,
    /// Number of the first message; the other messages follow in order.
    pub first: u64,
    /// Number of the first message of the other side that has not arrived.
    pub received: u64,
    /// `true` if the sender waits for the acknowledgement.
    pub urgent: bool,
    /// `true` if the sender regards the receiver as lost.
    ///
    /// The sender accepts none of the receiver's forks and none of its values.
    pub disowned: bool,
    /// Messages in order.
    pub messages: Vec<Control>,
}
