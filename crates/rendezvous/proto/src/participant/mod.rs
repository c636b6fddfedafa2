//! The machine of one agent that shares the state with others in any store.
//!
//! The store needs compare-and-set.
//!
//! ```text
//!              Join                     complete, with us
//!   idle ───────────────► joining ──────────────────────────► in a round ──┐ heartbeats,
//!    ▲  ◄── Failed ────────┘   ▲                                │  │  ▲    │ Changed
//!    │                         └────────────── Join ────────────┘  │  └────┘
//!    ├─── Left ──── leaving ◄───────────────── Leave ──────────────┤
//!    └─── Closed ── closing ◄───────────────── Close ──────────────┘
//! ```
//!
//! Each turn has the same steps. The machine updates its copy of the state if the copy may be old,
//! and removes lost nodes. It calls [`decide`](super::decide), [applies](super::apply) the action
//! to the copy, and writes the copy. Decisions that follow from one another go into one write. For
//! example, a node leaves a round and waits for the next one, or joins last and completes the
//! round. Every write of a node that is in a list contains its heartbeat.
//!
//! The machine updates the copy when the store reports a change, and when a heartbeat in the copy
//! would be too old. If the store cannot report changes, the machine polls it. A new request
//! replaces the current one, which then gets no answer.
//!
//! * `machine`: the diagram as code, with the current request and the times of the next steps;
//! * `pace`: pauses, so that agents do not write at the same time;
//! * `membership`: the changes of a complete round, and losses that other sources report.

mod machine;
mod membership;
mod pace;

use std::time::Duration;

pub use machine::Participant;

use crate::{NodeDesc, RendezvousState};

/// Event or request that a participant must handle.
///
/// [`Input::Join`], [`Input::Leave`] and [`Input::Close`] are requests. A new request replaces the
/// current one, which then gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The agent leaves its current round and joins the next one.
    Join,
    /// The agent leaves the rendezvous; the other nodes continue.
    Leave,
    /// The agent ends the run for all nodes.
    Close,
    /// Answer to [`Output::Read`]: the state in the store, if there is one.
    Read(Option<RendezvousState>),
    /// Answer to [`Output::Write`].
    Written {
        /// Current state in the store.
        state: Option<RendezvousState>,
        /// `true` if it is the state that this participant wrote.
        won: bool,
    },
    /// The store reports that the state may have changed.
    Changed,
    /// Nodes are lost, as a source other than heartbeats reports.
    Gone(Vec<NodeDesc>),
    /// The machine's deadline has passed, or an event needs a new decision.
    Tick,
}

/// Action that a participant requests from its driver, or a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Read the state.
    Read,
    /// Write this state if no other agent has written since the last read or write.
    Write(Box<RendezvousState>),
    /// Answer to [`Input::Join`]: the round is complete.
    Joined(Formed),
    /// The round that the node has joined has changed, or the run is over.
    Changed(ParticipantChange),
    /// Answer to [`Input::Leave`]: the node has left.
    Left,
    /// Answer to [`Input::Close`]: the run is over.
    Closed,
    /// Answer to the current request: it failed.
    Failed(ParticipantFailure),
}

/// A complete round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Formed {
    /// Number of the round.
    pub round: u64,
    /// Rank of this node.
    pub rank: u32,
    /// Participants in the order of their ranks.
    pub participants: Vec<NodeDesc>,
}

/// Change of a round after it was complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParticipantChange {
    /// These nodes wait for the next round, which has room for them.
    ///
    /// The participant reports them again when a further node waits.
    NodesWaiting(Vec<NodeDesc>),
    /// These participants are lost.
    NodesLost(Vec<NodeDesc>),
    /// The round no longer contains this node, or another round has replaced it.
    ///
    /// The other nodes treat this node as lost.
    Dropped,
    /// The run was closed.
    Closed,
}

/// Reason for which a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParticipantFailure {
    /// The run was closed before.
    Closed,
    /// The run was closed while this node was a spare: the job did not need it.
    NotNeeded,
    /// The round was not complete in time.
    JoinTimeout {
        /// Nodes in the forming round, possibly including this node.
        ///
        /// If a complete round did not admit this node, these are the nodes in the wait list.
        joined: Vec<NodeDesc>,
        /// Time for which the node has tried.
        elapsed: Duration,
    },
    /// The node could not leave or close the run in time.
    ///
    /// Its writes lost races with other agents, or the store was slow.
    WriteTimeout {
        /// Time for which the node has tried.
        elapsed: Duration,
    },
}
