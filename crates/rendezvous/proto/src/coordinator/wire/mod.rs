//! The native wire: operations from an agent to its coordinator, events back.
//!
//! A native connection begins like any other store connection. After that it carries only
//! operations and events. Operations are requests of a store extension. The coordinator can send an
//! event at any time. All integers are little-endian. A text is a `u16` length and that number of
//! bytes of UTF-8.
//!
//! ```text
//!   operation (agent → host)   +------------+-------------+---------------------+
//!                              | opcode: u8 | length: u64 | fields ...          |
//!                              +------------+-------------+---------------------+
//!   0x20 join       version: u8 (1), instance: u64, run: text,
//!                   node: addr text, pid i64, local id i64
//!                   settings: min u32, max u32, join ms u64, last call ms u64,
//!                             keep-alive ms u64, keep-alive attempts u32
//!                   role: text, local world size: u32, number of the join: u32
//!                   program: u8 (1: it follows), name text, fingerprint u64, whether the run was
//!                            given an id u8
//!                   the agents that it replaces: u8 count of instance u64
//!                   node timeout ms u64, the agent's address text (empty: not known)
//!                   its choice of a fence: u8 (0 none, 1 off, 2 auto)
//!                   u8 (1: every round sorts its nodes), its lost ranks: u8 count of u32
//!   0x21 leave
//!   0x22 close      run: text
//!   0x23 heartbeat  nothing or flags: u8 (1: the agent has a viewer, 2: for all agents), message
//!   0x24 failed     reason: text
//!   0x25 master     round: u64, addr: text, port: u16
//!   0x26 status     run: text
//!   0x27 reattach   last coordinator: cluster u64, epoch u32, address text (empty: not known);
//!                   its last round: u8 (0 none, 1 it holds it, 2 it has left it, 3 it leaves the
//!                   run), then for 1 and 2
//!                   round: u64, rank: u32, size: u32, host: u32 (a rank; ff ff ff ff: none),
//!                   succeeded: u8,
//!                   master: addr text (empty: not known), port u16; then the fields of join
//!   0x28 succeeded  round: u64
//!   0x29 lease      number: u64, then nothing or u8 (1: it has one, 2: it needs none)
//!   0x2a detach
//!   0x2b candidate  willing: u8 (1: the agent can be a voter, and is none)
//!
//!   event (host → agent)       +----------+-------------+-----------------------+
//!                              | kind: u8 | length: u32 | fields ...            |
//!                              +----------+-------------+-----------------------+
//!   1 formed        round: u64, rank: u32, world size: u32, then nothing or
//!                   assignment: base rank, world size, base role rank, role world size, u32 each,
//!                   and the replaced ranks: u32 count of u32
//!   2 master        round: u64, addr: text, port: u16
//!   3 membership    round: u64, waiting: u32, reason: text
//!   4 peer failed   node: text, reason: text
//!   5 closed
//!   6 refused       why: u8 (0 closed, 1 not needed, 2 join timeout, 3 unusable), sentence: text,
//!                   then for a join timeout: elapsed ms u64, joined: u16 count of texts
//!   7 left
//!   8 alive         nothing or the number of nodes that have joined: u32 (0 unless the agent waits
//!                   for a round), 1 if the agent is a spare: u8, hosts: u8 count of texts,
//!                   then nothing or the number of the watch: u32,
//!                   messages of agents: u32 length and bytes each
//!   9 status        closed: u8, waiting: u32
//!   10 attached     cluster: u64, epoch: u32, timeout ms u64, flags: u8 (1: agents can be voters,
//!                   2: the coordinator is in the agent's process)
//!   11 recoverable  round: u64, then nothing or the rank of the host: u32
//!   12 all succeeded round: u64
//!   13 backed       number: u64
//!   14 undecided    address: text
//!   15 voters       invites: u8, voters: u8, addresses: u8 count of texts
//!   16 fence        round: u64, on: u8
//! ```
//!
//! A coordinator that is not restartable does not send `attached`, and no agent without a program
//! receives it. Agents send operations from 0x27 on, except `succeeded`, only to coordinators that
//! have sent it, and to their successors.
//!
//! Parsers trust no length. They ignore fields that a later version adds at the end.

mod event;
mod fields;
mod operation;

pub use event::{
    AgentRefusal, Authority, Event, EventReader, MAX_EVENT_BYTES, MOST_REPLACED, VoterList,
};
pub use operation::{
    HeldRound, Join, LastCoordinator, Operation, Program, Reattach, Report, Standing,
};

use thiserror::Error;

/// Version of the wire, which each join contains.
pub const VERSION: u8 = 1;

/// Nonce of the `PING` with which an agent asks if a store hosts rendezvous.
///
/// Store clients use their process id as the nonce, and no process id is that large.
pub const PROBE: u32 = 0x767A_6452;

/// Answer of a coordinator to [`PROBE`]; other stores echo the nonce.
pub const PROBE_ANSWER: u32 = 0x317A_6452;

/// Answer of a voter to [`PROBE`] if it is not the coordinator.
///
/// The voter (crate `rdzv-voters`) can report the endpoint of the coordinator.
pub const PROBE_VOTER: u32 = 0x327A_6452;

/// Error in the bytes of an operation or an event.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// The fields are truncated.
    #[error("it is truncated: {0} is incomplete or missing")]
    Short(&'static str),
    /// A text is not UTF-8.
    #[error("{0} is not UTF-8")]
    NotText(&'static str),
    /// A host name contains control characters.
    #[error("{0} contains control characters")]
    NotAHost(&'static str),
    /// A text is longer than the limit.
    #[error("{0} is longer than 4096 bytes")]
    LongText(&'static str),
    /// No operation or event has this number.
    #[error("0x{0:02x} is unknown")]
    Unknown(u8),
    /// A join has another version.
    #[error("it uses version {0} of the native rendezvous, but this host uses version {VERSION}")]
    Version(u8),
    /// An event is longer than the limit.
    #[error("an event of {0} bytes exceeds the limit of {MAX_EVENT_BYTES}")]
    TooLong(u32),
}
