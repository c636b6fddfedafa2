//! The events of a rendezvous, as torchelastic has them.

use std::sync::Arc;

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
}

impl RendezvousEvent {
    /// An event without rank and error.
    pub fn new(state: NodeState, message: impl Into<String>) -> Self {
        Self {
            state,
            message: message.into(),
            rank: None,
            error: None,
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
