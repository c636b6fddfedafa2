//! Rendezvous events, as torchelastic records them.

use std::sync::Arc;
use std::time::Duration;

use rdzv_core::rank::GroupRank;

use crate::RendezvousError;

/// State of a node in its rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// The node is trying to join a round, or hosts the rendezvous endpoint.
    Init,
    /// The node is a member of a round.
    Running,
    /// The node left or closed the run, or the run did not need it.
    Succeeded,
    /// A request of the node failed, or the node lost the rendezvous.
    Failed,
}

impl NodeState {
    /// Returns the name of the state in torchelastic's events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
        }
    }
}

/// Rendezvous event about this node or its group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RendezvousEvent {
    /// State of this node.
    pub state: NodeState,
    /// Description in one sentence.
    pub message: String,
    /// Rank of this node, if it has one.
    pub rank: Option<GroupRank>,
    /// Error text, if the event reports an error.
    pub error: Option<String>,
    /// Machine-readable form of the event, if it is a [`GroupEvent`].
    pub group: Option<GroupEvent>,
}

/// Event about the coordinator, the voters or the fence of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupEvent {
    /// This agent has attached to its first coordinator, or to another one.
    CoordinatorChanged {
        /// Endpoint of the new coordinator.
        coordinator: String,
        /// Endpoint of the previous coordinator, if there was one.
        before: Option<String>,
        /// Epoch of the new coordinator.
        epoch: u32,
    },
    /// The set of voters has changed. Sent only if this process is in the group.
    VotersChanged {
        /// Endpoints of the current voters.
        voters: Vec<String>,
    },
    /// This agent has reconnected to a coordinator.
    Reattached {
        /// Endpoint of the coordinator.
        coordinator: String,
        /// Time that this agent had no connection.
        took: Duration,
    },
    /// The coordinator in this process has ended the recovery of the last round.
    Recovered {
        /// Id of the run.
        run: String,
        /// Number of the last round.
        round: u64,
        /// Number of nodes of the round.
        nodes: u32,
        /// Time since the coordinator began to search for the members.
        took: Duration,
    },
    /// The fence of this node was turned on or off.
    Fence {
        /// `true` if the fence is on.
        acts: bool,
    },
    /// The agent has suspended the workers of this node.
    Fenced,
    /// The workers of this node are no longer suspended.
    Unfenced {
        /// Time that the workers were suspended.
        stood: Duration,
        /// `true` if the fence killed the workers instead of resuming them.
        killed: bool,
    },
}

impl GroupEvent {
    /// Returns the name of this event in machine-readable output.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CoordinatorChanged { .. } => "coordinator_changed",
            Self::VotersChanged { .. } => "voters_changed",
            Self::Reattached { .. } => "reattached",
            Self::Recovered { .. } => "recovered",
            Self::Fence { acts: true } => "fence_on",
            Self::Fence { acts: false } => "fence_off",
            Self::Fenced => "fenced",
            Self::Unfenced { .. } => "unfenced",
        }
    }
}

impl RendezvousEvent {
    /// Creates an event without a rank and without an error.
    pub fn new(state: NodeState, message: impl Into<String>) -> Self {
        Self {
            state,
            message: message.into(),
            rank: None,
            error: None,
            group: None,
        }
    }

    /// Adds the machine-readable form to the event.
    pub fn about(self, group: GroupEvent) -> Self {
        Self {
            group: Some(group),
            ..self
        }
    }

    /// Creates the event for a failure, with torchelastic's name for the error.
    pub fn failed(error: &RendezvousError) -> Self {
        let text = error.to_string();
        Self {
            error: Some(text.clone()),
            ..Self::new(NodeState::Failed, format!("{}: {text}", error.class()))
        }
    }
}

/// Function that receives events, from any thread.
pub type Recorder = Arc<dyn Fn(RendezvousEvent) + Send + Sync>;
