//! The state as agents share it: a pickle, and that as base64 in a store.
//!
//! ```text
//!   RendezvousState ── encode ──► pickle ── base64 ──► value under the run's key
//!                   ◄─ decode ───        ◄── base64 ──     (or the sentinel: no state yet)
//! ```
//!
//! What Python's agents write is read, what is written they read, and what they may add in other
//! releases is kept ([`Dialect`](super::Dialect)). Both directions take time in proportion to the
//! number of nodes.

mod read;
pub mod text;
mod write;

use thiserror::Error;

use super::RendezvousState;
use rdzv_pickle::{PickleError, Problem};

/// The value that means that there is no state yet.
pub const SENTINEL: &[u8] = b"Y2FuaW1hZGFt";

/// The pickle of `state`.
pub fn encode(state: &RendezvousState) -> Vec<u8> {
    write::state(state)
}

/// The state in a pickle.
pub fn decode(pickle: &[u8]) -> Result<RendezvousState, CodecError> {
    read::state(pickle)
}

/// What is put in a store for `state`.
pub fn to_value(state: &RendezvousState) -> Vec<u8> {
    text::encode(&encode(state))
}

/// The state in a store's value; nothing for the sentinel.
pub fn from_value(value: &[u8]) -> Result<Option<RendezvousState>, CodecError> {
    if value == SENTINEL {
        return Ok(None);
    }
    decode(&text::decode(value)?).map(Some)
}

/// Names of the state's attributes, in the order they are written.
mod state {
    pub(super) const ROUND: &str = "round";
    pub(super) const COMPLETE: &str = "complete";
    pub(super) const DEADLINE: &str = "deadline";
    pub(super) const CLOSED: &str = "closed";
    pub(super) const PARTICIPANTS: &str = "participants";
    pub(super) const WAIT_LIST: &str = "wait_list";
    pub(super) const REDUNDANCY_LIST: &str = "redundancy_list";
    pub(super) const LAST_HEARTBEATS: &str = "last_heartbeats";

    pub(super) const ALL: [&str; 8] = [
        ROUND,
        COMPLETE,
        DEADLINE,
        CLOSED,
        PARTICIPANTS,
        WAIT_LIST,
        REDUNDANCY_LIST,
        LAST_HEARTBEATS,
    ];
}

/// Names of a node's attributes, in the order they are written.
mod node {
    pub(super) const ADDR: &str = "addr";
    pub(super) const PID: &str = "pid";
    pub(super) const LOCAL_ID: &str = "local_id";

    pub(super) const ALL: [&str; 3] = [ADDR, PID, LOCAL_ID];
}

/// Why something is not the state of a rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The value of the store is no base64.
    #[error(
        "{length} bytes that are no base64 ({digits} of its digits, which does not come out even)"
    )]
    Base64 {
        /// Length of the value.
        length: usize,
        /// How many of its bytes are digits of base64.
        digits: usize,
    },
    /// It is no pickle, or one of something else.
    #[error("no pickle of a rendezvous state: {0}")]
    Pickle(#[from] PickleError),
    /// Something in the state is of another kind than it should be.
    #[error("a rendezvous state whose {place} is {found}, not {wanted}")]
    Kind {
        /// What is wrong, for instance `pid of participant 3`.
        place: String,
        /// What it is.
        found: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// A number in the state is out of its range.
    #[error("a rendezvous state whose {place} is {found}, which is out of range")]
    Range {
        /// What is wrong.
        place: String,
        /// Its value.
        found: i128,
    },
    /// An attribute is absent that all releases write.
    #[error("a rendezvous state without {name} in its {place}")]
    Absent {
        /// Where.
        place: String,
        /// The attribute.
        name: &'static str,
    },
    /// It unfolds into more than an honest one could.
    #[error("a rendezvous state whose {place} cannot be taken: {problem}")]
    Unfolds {
        /// Where.
        place: String,
        /// What there is too much of.
        problem: Problem,
    },
}
