//! The events of a rendezvous, as torchelastic has them.

use std::sync::Arc;
use std::time::Duration;

use rdzv_core::rank::GroupRank;

use crate::RendezvousError;

/// State of a node in its rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// It looks for the others, or hosts what they meet at.
    Init,
    /// It takes part.
    Running,
    /// It has left in order.
    Succeeded,
    /// It could not take part, or has lost what the nodes meet at.
    Failed,
}

impl NodeState {
    /// Its name in torchelastic's events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
        }
    }
}

/// Something that a rendezvous records about its node or another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousEvent {
    /// State of this node.
    pub state: NodeState,
    /// One sentence.
    pub message: String,
    /// This node's rank, if it has one.
    pub rank: Option<GroupRank>,
    /// The error, if this is about one.
    pub error: Option<String>,
    /// The same for programs, if it is about the coordinator, its voters or the fence of this node.
    pub group: Option<GroupEvent>,
}

/// Something about the coordinator, its voters or the fence of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEvent {
    /// This agent has another coordinator than before.
    CoordinatorChanged {
        /// Its endpoint.
        coordinator: String,
        /// The endpoint of the one before, if there was one.
        before: Option<String>,
        /// Its number.
        epoch: u32,
    },
    /// Other processes vote than before; this one is among the members of the group.
    VotersChanged {
        /// The endpoints of those that vote now.
        voters: Vec<String>,
    },
    /// This agent has a connection to a coordinator again.
    Reattached {
        /// Its endpoint.
        coordinator: String,
        /// The time without one.
        took: Duration,
    },
    /// The coordinator, which is in this process, knows again who was in the last round.
    Recovered {
        /// The run.
        run: String,
        /// The round.
        round: u64,
        /// The number of its nodes.
        nodes: u32,
        /// The time since the coordinator began.
        took: Duration,
    },
    /// Rounds of this node have a fence from here on, or have none.
    Fence {
        /// `true` if it has one.
        acts: bool,
    },
    /// The workers of this node stand still.
    Fenced,
    /// They do not any more.
    Unfenced {
        /// For how long they stood still.
        stood: Duration,
        /// They were killed, and did not go on.
        killed: bool,
    },
}

impl GroupEvent {
    /// Its name in events for programs.
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
    /// An event without rank and error.
    pub fn new(state: NodeState, message: impl Into<String>) -> Self {
        Self {
            state,
            message: message.into(),
            rank: None,
            error: None,
            group: None,
        }
    }

    /// The same with its form for programs.
    pub fn about(self, group: GroupEvent) -> Self {
        Self {
            group: Some(group),
            ..self
        }
    }

    /// The failure of something, with torchelastic's name for the error.
    pub fn failed(error: &RendezvousError) -> Self {
        let text = error.to_string();
        Self {
            error: Some(text.clone()),
            ..Self::new(NodeState::Failed, format!("{}: {text}", error.class()))
        }
    }
}

/// Takes events, from any thread.
pub type Recorder = Arc<dyn Fn(RendezvousEvent) + Send + Sync>;
