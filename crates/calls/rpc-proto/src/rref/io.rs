//! Inputs, outputs, settings and errors of [`References`](super::References).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ident::{FetchId, ForkData, ForkId, Handle, Member, RRefId};
use super::message::Batch;

/// Time limits of [`References`](super::References).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Time after which an unreachable member is lost (default: 10 s).
    ///
    /// The member's forks are then released.
    pub lost_after: Duration,
    /// Time for which a message is held back to share a batch (default: 1 ms).
    ///
    /// This applies to messages that no worker waits for.
    pub linger: Duration,
    /// Time for which an acknowledgement waits for a message (default: 100 ms).
    ///
    /// A message that is sent within this time carries the acknowledgement.
    pub acknowledge_within: Duration,
    /// Time after which the parent asks the receiver about a fork (default: 30 s).
    ///
    /// This must exceed the time for which a call or a result can be in flight.
    pub ask_after: Duration,
    /// Interval of the checks of silent members (default: 30 s).
    ///
    /// This concerns members that hold or receive forks from here, or own values used here.
    ///
    /// A member is probed after 0.5 to 1.5 times this interval without a message. A lost member is
    /// therefore noticed even if no other event reports the loss.
    pub renew_after: Duration,
    /// Time for which an abandoned fork is refused (default: 10 min).
    pub refuse_for: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lost_after: Duration::from_secs(10),
            linger: Duration::from_millis(1),
            acknowledge_within: Duration::from_millis(100),
            ask_after: Duration::from_secs(30),
            renew_after: Duration::from_secs(30),
            refuse_for: Duration::from_secs(600),
        }
    }
}

/// Event that concerns the references of an agent.
#[derive(Debug)]
pub enum Input<'a> {
    /// F1: the owner has accepted the request to create the value.
    Accepted(ForkId),
    /// F1: the call that creates the value failed.
    ///
    /// The owner may or may not have received the call.
    CreationFailed(ForkId),
    /// On the owner: the value exists, or the function that creates it failed.
    Made {
        /// Id of the value.
        rref: RRefId,
        /// `true` if the function failed.
        failed: bool,
    },
    /// F7: the last use of a handle has ended.
    ///
    /// For an owner's handle, the driver sends this once for each handle that it received.
    Dropped(Handle),
    /// F8, on the owner: a worker asks for a value.
    ///
    /// The request is for this member, or for an earlier incarnation of this worker. The driver
    /// assigns the id.
    Fetch(FetchId, Fetch),
    /// The request for a value was cancelled.
    FetchCancelled(RRefId, FetchId),
    /// A batch arrived.
    Received(&'a Batch),
    /// The message with this fork was certainly not sent.
    NotSent(ForkId),
    /// The call with this fork failed, and its message may have been lost.
    ///
    /// The machine then asks the receiver. A receiver that does not have the fork refuses it for
    /// [`Settings::refuse_for`]. No input is needed for a message that arrives.
    Strayed(ForkId),
    /// A message with this reference was discarded unread.
    Declined(ForkData),
    /// This member is connected. Other incarnations of the same worker have ended.
    Reachable(Member),
    /// The connection to this member broke, or cannot be opened.
    Unreachable(Member),
    /// This member has left the group, or is certainly dead.
    Left(Member),
    /// Release everything that the driver holds.
    ///
    /// [`Output::Drained`] follows. Values that other members use stay, and requests for them are
    /// still answered. If all members stay reachable, nothing is left anywhere when all have
    /// drained.
    Shutdown,
    /// Wait until nothing is in flight: [`Output::Drained`] follows.
    ///
    /// The driver makes no more calls, and continues to serve other members that may use the values
    /// here. Everything that is held stays held until the end.
    Quiesce,
    /// End of the agent, drained or not. [`Output::Ended`] follows.
    End,
    /// Time has passed.
    Tick,
}

/// Action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a batch to its member. The batch may get lost.
    Send(Batch),
    /// The owner knows this fork now.
    Confirmed(ForkId),
    /// The function that creates the value has ended.
    Completed {
        /// Fork of the creator.
        fork: ForkId,
        /// `true` if the function failed.
        failed: bool,
    },
    /// This fork can no longer be used.
    Broken(ForkId, ReferenceFailure),
    /// No member uses this value any more, or the agent ends.
    Free(RRefId),
    /// Answer to a request.
    ///
    /// `Ok`: the value, or the error of its function, exists.
    Fetched(FetchId, Result),
    /// A member is lost, and its forks were released.
    Lost {
        /// Member that is lost.
        member: Member,
        /// Number of forks that the member had here.
        released: usize,
    },
    /// Nothing that this member waits for is in flight any more.
    ///
    /// No function that creates a value runs, no fork waits for its owner, and no message to a
    /// reachable member waits for its acknowledgement. After [`Input::Shutdown`], this member also
    /// holds no fork any more.
    Drained,
    /// After [`Input::End`]: these forks were left.
    ///
    /// Each prints as a line of PyTorch's report.
    Ended(Vec<Leak>),
}

/// Kind of a received reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopted {
    /// F5, F6: this member owns the value.
    Owner(RRefId),
    /// A fork of another member's value.
    User {
        /// Id of the value.
        rref: RRefId,
        /// Id of the fork.
        fork: ForkId,
        /// `true` if the owner knows the fork.
        ///
        /// Otherwise no function may see the fork before [`Output::Confirmed`].
        confirmed: bool,
    },
}

/// PyTorch's debug counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Values here that have forks, or whose functions run.
    pub num_owner_rrefs: usize,
    /// Forks of these values.
    pub num_forks: usize,
    /// Forks here whose confirmation by the owner is pending.
    pub num_pending_users: usize,
    /// Control messages that were not acknowledged.
    pub num_pending_futures: usize,
}

/// State of a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    /// Owner of the value.
    pub owner: Member,
    /// `true` if the owner knows this fork.
    pub confirmed: bool,
    /// Reason why the fork is unusable; a broken fork counts as unconfirmed.
    pub broken: Option<ReferenceFailure>,
}

/// Request for a value, sent to the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Owner of the value.
    pub owner: Member,
    /// Id of the value.
    pub rref: RRefId,
    /// Member that asked the owner to make the value.
    ///
    /// `None` if the owner is known to have an entry for the value.
    pub creator: Option<Member>,
}

/// Fork that was left at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leak {
    /// Id of the value.
    pub rref: RRefId,
    /// Id of the fork.
    pub fork: ForkId,
    /// Member that has the fork.
    pub holder: Member,
}

/// Prints as PyTorch does.
impl fmt::Display for Leak {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Leaking RRef {} with fork Id {}",
            self.rref, self.fork
        )
    }
}

/// Reason why a reference cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReferenceFailure {
    /// The call that should have created the value failed. The text is PyTorch's.
    #[error(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist."
    )]
    CreationFailed,
    /// The shutdown of the agent released the reference. The text is PyTorch's.
    #[error("{handle} has been deleted. Cannot call {operation} on it after deletion.")]
    Deleted {
        /// Reference that was used.
        handle: Handle,
        /// Operation that failed.
        operation: &'static str,
    },
    /// The agent has stopped.
    #[error("the agent of this worker has stopped: its remote references are no longer usable")]
    Stopping,
    /// The owner is dead, unreachable, has left, or was restarted.
    #[error("the owner of {rref}, {owner}, is lost with all its values: create the value again")]
    OwnerLost {
        /// Id of the value.
        rref: RRefId,
        /// Former owner of the value.
        owner: Member,
    },
    /// The owner does not have the value.
    ///
    /// The member that passed the reference on, or that asked for the value, was lost before the
    /// owner knew the reference, or cancelled the request.
    #[error("the owner does not have {0}: its sender was lost or released it")]
    Gone(RRefId),
    /// The reference arrived twice, or its sender has abandoned it or was lost.
    #[error("{0} cannot be used: it arrived twice, or its sender has released it or was lost")]
    GivenUp(RRefId),
    /// A peer sent an impossible request.
    #[error("cannot create {0}: {1}")]
    Refused(RRefId, &'static str),
}

/// [`std::result::Result`] of a reference.
pub type Result<T = (), E = ReferenceFailure> = std::result::Result<T, E>;
