//! Inputs, outputs, settings and errors of the machine.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ident::{FetchId, ForkData, ForkId, Handle, Member, RRefId};
use super::message::Batch;

/// How patient the machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long a member may be unreachable before it is lost and its forks are released. Default:
    /// 10 s.
    pub grace: Duration,
    /// How long a message that nobody waits for is kept back, so that others go with it. Default:
    /// 1 ms.
    pub linger: Duration,
    /// How long an acknowledgement waits for a message to go with. Default: 100 ms.
    pub acknowledge_within: Duration,
    /// How long a fork may be silent before its receiver is asked about it.
    ///
    /// It has to be longer than a call or result may be in flight. Default: 30 s.
    pub ask_after: Duration,
    /// How long a member that has forks or values of ours may be silent before it is asked whether
    /// it is there; between half of this and one and a half. If it is not, nobody else need notice.
    /// Default: 30 s.
    pub renew_after: Duration,
    /// How long a fork that was given up is refused, should it still come.
    ///
    /// Default: 10 min.
    pub refuse_for: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(10),
            linger: Duration::from_millis(1),
            acknowledge_within: Duration::from_millis(100),
            ask_after: Duration::from_secs(30),
            renew_after: Duration::from_secs(30),
            refuse_for: Duration::from_secs(600),
        }
    }
}

/// Something that happens to the references of an agent.
#[derive(Debug)]
pub enum Input<'a> {
    /// F1: the owner has answered that it makes the value.
    Accepted(ForkId),
    /// F1: the call that asks for the value failed, whether or not the owner has seen it.
    CreationFailed(ForkId),
    /// On the owner: the value exists, or the function that should make it failed.
    Made {
        /// The value.
        rref: RRefId,
        /// `true` if the function failed.
        failed: bool,
    },
    /// F7: the last use of a handle is over.
    ///
    /// One for each time that the owner's handle was given.
    Dropped(Handle),
    /// F8, on the owner: somebody asks for a value.
    ///
    /// The question is for this member, or for a former life of this worker. The driver names it.
    Fetch(FetchId, Fetch),
    /// Nobody waits for this answer any more.
    FetchCancelled(RRefId, FetchId),
    /// A batch came.
    Received(&'a Batch),
    /// The message that a fork was in was certainly not sent.
    NotSent(ForkId),
    /// The message that a fork was in has failed in flight: if its receiver has not got the fork by
    /// now, it is not to get it any more. (Of a message that arrives, nothing need be told.)
    Strayed(ForkId),
    /// A message was thrown away unread, with this in it.
    Declined(ForkData),
    /// A connection to this member stands. Other lives of the same worker are over.
    Reachable(Member),
    /// The connection to this member broke, or cannot be made.
    Unreachable(Member),
    /// This member has left the group, or is certainly dead.
    Left(Member),
    /// Release everything that the driver holds, and say when all have heard of it:
    /// [`Output::Drained`] follows. What others use here stays, and they are still answered; when
    /// all members have drained, nothing is left anywhere.
    Shutdown,
    /// The driver makes no more calls, and goes on to serve others who may use what is held here.
    /// Say when nothing is in flight: [`Output::Drained`] follows. What is held stays held until
    /// the end.
    Quiesce,
    /// The end, drained or not. [`Output::Ended`] follows.
    End,
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a batch to its member. It may get lost.
    Send(Batch),
    /// The owner knows of this fork now.
    Confirmed(ForkId),
    /// The function that made the value has ended.
    Completed {
        /// The creator's fork.
        fork: ForkId,
        /// `true` if it failed.
        failed: bool,
    },
    /// This fork can no longer be used.
    Broken(ForkId, Failure),
    /// Nobody uses this value any more.
    Free(RRefId),
    /// The answer to a question; the value, or the error of its function, is there if it is `Ok`.
    Fetched(FetchId, Result<(), Failure>),
    /// A member is lost; so many forks of it were released.
    Lost {
        /// Who.
        member: Member,
        /// How many forks it had here.
        released: usize,
    },
    /// After [`Input::Shutdown`]: all is released, and those who had to hear of it have. After
    /// [`Input::Quiesce`]: nobody has to hear of anything.
    Drained,
    /// After [`Input::End`]: these forks were left.
    ///
    /// Each prints as a line of PyTorch's report.
    Ended(Vec<Leak>),
}

/// What a received reference is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopted {
    /// F5, F6: this member has the value itself.
    Owner(RRefId),
    /// A fork of another member's value.
    User {
        /// The value.
        rref: RRefId,
        /// The fork.
        fork: ForkId,
        /// `true` if the owner knows of it.
        ///
        /// If not, no function may see it before [`Output::Confirmed`].
        confirmed: bool,
    },
}

/// PyTorch's debug counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Values here that others refer to, or that are being made.
    pub num_owner_rrefs: usize,
    /// Forks of them.
    pub num_forks: usize,
    /// Forks here that their owners have not confirmed.
    pub num_pending_users: usize,
    /// Control messages that were not acknowledged.
    pub num_pending_futures: usize,
}

/// What can be said of a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    /// Who has the value.
    pub owner: Member,
    /// `true` if the owner knows of this fork.
    pub confirmed: bool,
    /// Why it cannot be used any more, if so: it will not be confirmed then.
    pub broken: Option<Failure>,
}

/// A question for a value, as it is sent to the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Who has the value.
    pub owner: Member,
    /// The value.
    pub rref: RRefId,
    /// Who asked for the value, if the owner may not have heard of that yet.
    pub creator: Option<Member>,
}

/// A fork that was left at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leak {
    /// The value.
    pub rref: RRefId,
    /// The fork.
    pub fork: ForkId,
    /// Who has it.
    pub holder: Member,
}

/// As PyTorch prints it.
impl fmt::Display for Leak {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Leaking RRef {} with fork Id {}",
            self.rref, self.fork
        )
    }
}

/// Why a reference cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// The call that should have made the value failed. The text is PyTorch's.
    #[error(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist."
    )]
    CreationFailed,
    /// It was released by the shutdown of the agent. The text is PyTorch's.
    #[error("{handle} has been deleted. Cannot call {operation} on it after deletion.")]
    Deleted {
        /// The reference.
        handle: Handle,
        /// What was to be done with it.
        operation: &'static str,
    },
    /// The agent has stopped.
    #[error("the agent of this worker has stopped: there are no remote references any more")]
    Stopping,
    /// The owner is dead, cut off, has left, or was started again.
    #[error("the owner of {rref}, {owner}, is lost and its values with it: create it anew")]
    OwnerLost {
        /// The value.
        rref: RRefId,
        /// Who had it.
        owner: Member,
    },
    /// The owner does not have it: whoever passed it on, or asked for it, was lost before the owner
    /// knew, or gave up.
    #[error("the owner does not have {0}: who passed it on, or asked for it, was lost or gave up")]
    Gone(RRefId),
    /// It came after its sender had given it up, or twice.
    #[error("{0} came too late: its sender has given it up")]
    GivenUp(RRefId),
    /// A peer said something impossible.
    #[error("{0} cannot be created so: {1}")]
    Refused(RRefId, &'static str),
}
