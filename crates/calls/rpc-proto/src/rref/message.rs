//! Control messages about references, and batches of them.

use serde::{Deserialize, Serialize};

use super::ident::{ForkId, Member, RRefId};

/// One control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Control {
    /// User to owner: requests an entry for a fork from another user.
    ForkRequest {
        /// Id of the value.
        rref: RRefId,
        /// Fork of the sender.
        fork: ForkId,
        /// Member that asked for the value, if the owner may not know this yet.
        creator: Option<Member>,
    },
    /// Owner to user: the fork is entered.
    ForkAck(ForkId),
    /// Owner to user: the owner does not have the value.
    ForkRefused(ForkId),
    /// Receiver to parent: the parent need no longer keep its own fork.
    ChildAccept(ForkId),
    /// User to owner: the user has released its fork.
    UserDelete {
        /// Id of the value.
        rref: RRefId,
        /// Fork of the sender.
        fork: ForkId,
    },
    /// Creator to owner: the creator abandons its request for this value.
    ///
    /// The owner must refuse the call if it still arrives.
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
        /// `true` if the function failed.
        /// In this case the value is the function's error.
        failed: bool,
    },
    /// Owner to creator: asks whether the request for this value will still come.
    ///
    /// A reference to the value, or a request for it, has already arrived.
    CreationAsk(RRefId),
    /// Creator to owner: no request for this value is outstanding.
    CreationOver(RRefId),
    /// Parent to receiver: asks whether this fork has arrived.
    ForkAsk(ForkId),
    /// Receiver to parent: the fork has arrived.
    ForkPresent(ForkId),
    /// Receiver to parent: the receiver neither holds nor accepts the fork.
    ForkUnknown(ForkId),
    /// Any member: requests an acknowledgement.
    Probe,
}

/// Control messages to one member, in one frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Batch {
    /// Sender of the batch.
    pub from: Member,
    /// Receiver of the batch.
    /// Another incarnation of the same worker ignores it.
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
