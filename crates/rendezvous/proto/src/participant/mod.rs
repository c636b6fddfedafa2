//! The machine of one agent that shares the rendezvous with others through a compare-and-set store.
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
//! Each turn is the same: bring the copy of the state up to date if it may be old, remove who is
//! lost, [`decide`](super::decide), [`apply`](super::apply) to the copy, write it. Decisions that
//! follow from one another (to leave a round and wait for the next; to come last and complete it)
//! go into one write: nobody else could have written between them either. Every write of a node
//! that is in some list carries its heartbeat.
//!
//! The copy is brought up to date when the store says that it changed, when a heartbeat in it would
//! be too old, and, if the store cannot tell of changes, at intervals. A new request replaces the
//! current one, which is not answered any more.
//!
//! * `machine`: the drawing as code, with the current request and the times at which something is
//!   due; `pace`: how not to do it all at once; `membership`: the changes of a complete round, and
//!   who is known to be gone by other means than heartbeats.

mod machine;
mod membership;
mod pace;

use std::time::Duration;

pub use machine::Participant;

use crate::{NodeDesc, RendezvousState};

/// What happened to a participant. Of [`Input::Join`], [`Input::Leave`] and [`Input::Close`] one is
/// under way at a time: a later one replaces it, and it is not answered any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The agent wants to be in the next round; if it is in a round, it leaves that first.
    Join,
    /// The agent does not want to take part any more; the others go on.
    Leave,
    /// The agent ends the run for everybody.
    Close,
    /// Answer to [`Output::Read`]: what the store holds, `None` if nothing yet.
    Read(Option<RendezvousState>),
    /// Answer to [`Output::Write`]: what the store holds now, and whether that is what was written.
    Written {
        /// What it holds.
        state: Option<RendezvousState>,
        /// Whether our write won.
        won: bool,
    },
    /// The store says that the state may have changed.
    Changed,
    /// These nodes are known to be gone, by other means than heartbeats.
    Gone(Vec<NodeDesc>),
    /// Time passed.
    Tick,
}

/// What a participant wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Read the state.
    Read,
    /// Write this state if nobody else has written since the last read or write.
    Write(Box<RendezvousState>),
    /// Answer to [`Input::Join`]: the round is complete.
    Joined(Formed),
    /// After [`Output::Joined`]: the round does not hold any more, or the run is over.
    Changed(Change),
    /// Answer to [`Input::Leave`].
    Left,
    /// Answer to [`Input::Close`].
    Closed,
    /// The answer to the request under way: it failed.
    Failed(Failure),
}

/// A complete round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formed {
    /// Its number.
    pub round: u64,
    /// Our rank.
    pub rank: u32,
    /// Who takes part, in the order of their ranks.
    pub participants: Vec<NodeDesc>,
}

/// What became of a round after it was complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These nodes wait for the next round, and there is room for them. Told again when another one
    /// waits.
    NodesWaiting(Vec<NodeDesc>),
    /// Participants are gone.
    NodesLost(Vec<NodeDesc>),
    /// The others count us as lost, so we are not part of the round any more.
    Dropped,
    /// The run was closed.
    Closed,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The run was closed before.
    Closed,
    /// The run was closed while this node waited as a surplus one: the job did not need it.
    NotNeeded,
    /// The round was not complete in time.
    JoinTimeout {
        /// Who had come, this node included if it had. If a complete round did not let us in: who
        /// waits beside it.
        joined: Vec<NodeDesc>,
        /// How long it was tried.
        elapsed: Duration,
    },
    /// Closing or leaving was not possible in time, because every write lost its race.
    WriteTimeout {
        /// How long it was tried.
        elapsed: Duration,
    },
}
