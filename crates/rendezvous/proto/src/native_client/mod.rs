//! One agent's side of native rendezvous: what it says to the coordinator, and what it makes of the answers.
//!
//! ```text
//!                 Join                Formed               Master
//!        idle ───────────► joining ───────────► formed ───────────► member
//!          ▲                  ▲  refused ▼         │ Membership        │ Join
//!          └── Leave, refused ┘     idle           └──► joining ◄──────┘
//! ```
//!
//! A coordinator that is not started again when it dies takes an agent whose connection breaks for
//! lost. A join that is under way is then repeated over a new connection; a member is told that its
//! round does not hold any more. If no new connection can be made for a while, what the rendezvous
//! stands on is gone. A coordinator that was not closed but fell silent is tried for longer,
//! because the network may be cut: the member is told before that, and joins again when the network
//! is back.
//!
//! A coordinator that is started again says so (`Attached`). Then a broken connection is no loss:
//! the agent reattaches over a new one, says where it stands, and repeats what was perhaps not
//! heard. A member of a round that can be recovered stays one meanwhile.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | types |
//! | `client.rs` | the machine |
//! | `lease.rs` | until when its workers may run |
//! | `quiet.rs` | a coordinator that says nothing |
//! | `attachment.rs` | what it knows of its coordinator, and what it says over a new connection |

mod attachment;
mod client;
mod lease;
mod quiet;

use std::time::Duration;

pub use client::NativeClient;

use crate::coordinator::wire::Refusal;
use crate::waiting::Waiting;
use rdzv_core::rank::Assignment;
use rdzv_core::time::Mono;

/// What happened to an agent's side.
#[derive(Debug)]
pub enum Input<'a> {
    /// The agent wants to be in the next round.
    Join {
        /// The role of its workers.
        role: &'a str,
        /// How many it starts.
        local_world_size: u32,
    },
    /// The join under way shall end.
    Interrupt,
    /// The agent does not want to take part any more.
    Leave,
    /// The agent ends the run for everybody.
    Close,
    /// The agent has failed for good.
    Failed(&'a str),
    /// Answer to [`Output::Lead`]: where the workers meet.
    Publish {
        /// The round.
        round: u64,
        /// The host.
        addr: &'a str,
        /// The port.
        port: u16,
    },
    /// All workers of the agent have succeeded in this round; answered with [`Output::AllSucceeded`] in due
    /// time. Only if [`Joined::is_recoverable`].
    Succeeded(u64),
    /// Whether the agent can be a voter, and is none.
    Willing(bool),
    /// The agent wants to know how the run stands.
    Ask,
    /// Bytes came from the coordinator.
    Bytes(&'a [u8]),
    /// A connection is there, whose own end is at this numeric address and port, under the condition of
    /// [`NativeClient::from`].
    Connected(Option<&'a str>),
    /// The connection broke, or none could be made; why.
    Disconnected(String),
    /// The deadline has come.
    Tick,
}

/// What it wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Make a connection; answered with [`Input::Connected`] or [`Input::Disconnected`].
    Dial,
    /// Close the connection, in order behind what was sent.
    HangUp,
    /// Have the kernel end this connection if the other one acknowledges nothing for so long of what is sent.
    Watch(Duration),
    /// Ask the other voters who coordinates; if it is another one than this, the connection is of no use
    /// any more ([`Input::Disconnected`]).
    Search,
    /// The coordinator is, or will be, at one of these voters, or of those that learn.
    Voters {
        /// `host:port` of each, those that learn at the end.
        addresses: Vec<String>,
        /// The number of voters among them.
        voters: u8,
        /// The agent is to be one of them; answered with [`Input::Willing`].
        invites: bool,
    },
    /// Send to the coordinator.
    Send(Vec<u8>),
    /// This agent has rank 0 of the round, and says where the workers meet ([`Input::Publish`]).
    Lead {
        /// The round.
        round: u64,
    },
    /// Answer to [`Input::Join`]: the round is complete.
    Joined(Joined),
    /// Answer to [`Input::Join`]: it failed.
    NotJoined(Failure),
    /// The nodes that a join waits for.
    Waiting {
        /// The nodes that have come, and so on.
        waiting: Waiting,
        /// People are to be told; else it is for a place that is always up to date.
        is_reminder: bool,
    },
    /// Tell people that the round is complete and the node with rank 0 has not said where its workers meet.
    AwaitingMaster {
        /// The number of the round.
        round: u64,
        /// Time until the join fails.
        left: Duration,
    },
    /// Answer to [`Input::Succeeded`]: the workers of all agents of the round have.
    AllSucceeded(u64),
    /// A lease of the workers of a round.
    ///
    /// Of a round with a fence, the first comes before [`Output::Joined`].
    Lease {
        /// The round.
        round: u64,
        /// The end of the lease; `None` without a fence.
        ends: Option<Mono>,
    },
    /// Tell people that there is no coordinator.
    Missing(Missing),
    /// Tell people that the coordinator of the round was at this address, and that the one of now does not know whether it has
    /// ended.
    Undecided(String),
    /// The round of which [`Output::Joined`] told does not hold any more, or the run is over.
    Changed(Change),
    /// Answer to [`Input::Close`].
    Closed,
    /// Answer to [`Input::Close`]: the coordinator cannot be told.
    NotClosed(Failure),
    /// Answer to [`Input::Ask`].
    Status {
        /// Whether the run is over.
        closed: bool,
        /// How many nodes wait for the next round.
        waiting: u32,
    },
}

/// A complete round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Its number.
    pub round: u64,
    /// The agent's rank.
    pub rank: u32,
    /// The number of agents.
    pub world_size: u32,
    /// The ranks of its workers, if all agents are native.
    pub assignment: Option<Assignment>,
    /// Host of the store that the workers meet at.
    pub master_addr: String,
    /// Its port.
    pub master_port: u16,
    /// Whether it holds on over the death of the coordinator.
    pub is_recoverable: bool,
}

/// Since when there is no coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The answer in its place; nothing if it is connected and silent.
    pub what: Option<String>,
    /// For how long it has been tried.
    pub elapsed: Duration,
    /// For how long it will be.
    pub left: Duration,
    /// Whether the workers have a fence: without a coordinator they stand still, and are killed later.
    pub is_fenced: bool,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The coordinator does not let the agent in.
    Refused(Refusal),
    /// [`Input::Interrupt`].
    Interrupted,
    /// The coordinator cannot be reached, or does not do what it should.
    Unreachable {
        /// What was found there.
        what: String,
        /// How long it was tried.
        elapsed: Duration,
    },
}

/// What became of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It does not hold any more.
    Membership {
        /// The round.
        round: u64,
        /// Why; a sentence.
        reason: String,
    },
    /// A participant has failed for good.
    PeerFailed {
        /// Which.
        node: String,
        /// What it said.
        reason: String,
    },
    /// The run is over.
    Closed,
    /// The coordinator is gone.
    Lost {
        /// What was found in its place.
        what: String,
        /// How long it was tried.
        elapsed: Duration,
    },
}
