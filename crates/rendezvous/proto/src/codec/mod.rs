//! State that the agents share: a pickle, stored as base64.
//!
//! ```text
//!   RendezvousState ── encode ──► pickle ── base64 ──► value under the run's key
//!                   ◄─ decode ───        ◄── base64 ──     (or the sentinel: no state yet)
//! ```
//!
//! Python agents can read what this module writes, and this module reads what they write. It
//! ignores attributes that it does not know. Both directions take time almost proportional to the
//! number of nodes.

mod read;
pub mod text;
mod write;

use thiserror::Error;

use super::RendezvousState;
use rdzv_pickle::{PickleError, Problem};

/// The value of a key that has no state yet.
pub const SENTINEL: &[u8] = b"Y2FuaW1hZGFt";

/// Returns the pickle of `state`.
pub fn encode(state: &RendezvousState) -> Vec<u8> {
    write::state(state)
}

/// Reads the state in a pickle.
pub fn decode(pickle: &[u8]) -> Result<RendezvousState, CodecError> {
    read::state(pickle)
}

/// Returns `state` as a store value: its pickle in base64.
pub fn to_value(state: &RendezvousState) -> Vec<u8> {
    text::encode(&encode(state))
}

/// Reads the state from a store value; `None` for the sentinel.
pub fn from_value(value: &[u8]) -> Result<Option<RendezvousState>, CodecError> {
    if value == SENTINEL {
        return Ok(None);
    }
    decode(&text::decode(value)?).map(Some)
}

/// Names of the state's attributes, in the order in which they are written.
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

/// Names of a node's attributes, in the order in which they are written.
mod node {
    pub(super) const ADDR: &str = "addr";
    pub(super) const PID: &str = "pid";
    pub(super) const LOCAL_ID: &str = "local_id";

    pub(super) const ALL: [&str; 3] = [ADDR, PID, LOCAL_ID];
}

/// Reason why a value is not a rendezvous state.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The store's value is not base64.
    #[error(
        "the {length} bytes are not base64 (the {digits} base64 digits do not form whole bytes)"
    )]
    Base64 {
        /// Length of the value in bytes.
        length: usize,
        /// Number of base64 digits in the value.
        digits: usize,
    },
    /// The value is not a pickle, or contains what no state contains.
    #[error("not a pickle of a rendezvous state: {0}")]
    Pickle(#[from] PickleError),
    /// A part of the state has the wrong type.
    #[error("in the rendezvous state, {part} is {found} instead of {wanted}")]
    Kind {
        /// Part of the state, for instance `pid of item 3 of participants`.
        part: String,
        /// Type that was found.
        found: &'static str,
        /// Type that was expected.
        wanted: &'static str,
    },
    /// A number in the state is out of its range.
    #[error("in the rendezvous state, {part} is {found}, which is out of range")]
    Range {
        /// The part.
        part: String,
        /// The value of the part.
        found: i128,
    },
    /// An attribute that all releases write is missing.
    #[error("in the rendezvous state, {part} has no {name}")]
    Absent {
        /// The object without the attribute.
        part: String,
        /// The attribute.
        name: &'static str,
    },
    /// The pickle expands to more than the limits allow.
    #[error("the rendezvous state exceeds a limit at {part}: {problem}")]
    Unfolds {
        /// The part.
        part: String,
        /// The limit that was exceeded.
        problem: Problem,
    },
}
