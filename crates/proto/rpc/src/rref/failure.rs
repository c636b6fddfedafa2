//! Why a reference cannot be used.

use thiserror::Error;

use super::ident::{Handle, Member, RRefId};

/// Why a reference cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// The call that should have made the value failed. The text is the reference's.
    #[error(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist."
    )]
    CreationFailed,
    /// It was released by the shutdown of the agent. The text is the reference's.
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
