//! The agent's side of native rendezvous.
//!
//! ```text
//!                 Join                Formed               Master
//!        idle ───────────► joining ───────────► formed ───────────► member
//!          ▲                  ▲  refused ▼         │ Membership        │ Join
//!          └── Leave, refused ┘     idle           └──► joining ◄──────┘
//! ```
//!
//! If a coordinator has no successor, an agent is lost when its connection breaks. Over a new
//! connection, this machine repeats a pending join, and reports to a member that its round is over.
//! If it cannot connect for some time, the coordinator is lost. It tries longer to reach a
//! coordinator that was silent before, because the network may be cut. In that case, the member
//! learns earlier that its round is over, and joins again when the network works.
//!
//! If a coordinator has a successor, it reports that (`Attached`). Then a broken connection does
//! not mean a lost agent. The agent reattaches over a new connection, reports its state, and
//! repeats messages that may not have arrived. A member of a recoverable round stays a member
//! during this time.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | types |
//! | `client.rs` | the machine, and the requests of the agent |
//! | `client/events.rs` | events of the coordinator |
//! | `client/connection.rs` | the connection to the coordinator, and outages |
//! | `client/silence.rs` | heartbeats, and a coordinator that sends nothing |
//! | `client/fence.rs` | the fence of a round |
//! | `lease.rs` | the lease of the workers, and the questions that renew it |
//! | `quiet.rs` | steps while the coordinator sends nothing |
//! | `attachment.rs` | knowledge about the coordinator, which survives a connection |

mod attachment;
mod client;
mod lease;
mod quiet;

use std::time::Duration;

pub use client::NativeClient;

use crate::coordinator::wire::{AgentRefusal, Report, VoterList};
use crate::waiting::Waiting;
use rdzv_core::rank::Assignment;
use rdzv_core::time::Mono;

/// Event or request that the machine must handle.
#[derive(Debug)]
pub enum Input<'a> {
    /// The agent requests to participate in the next round.
    Join {
        /// Role of its workers.
        role: &'a str,
        /// Number of workers that the agent starts.
        local_world_size: u32,
        /// Ranks of its workers that exited in its last round.
        lost: &'a [u32],
    },
    /// The agent cancels its pending join.
    Interrupt,
    /// The agent leaves the run.
    Leave,
    /// The agent ends the run for all agents.
    Close,
    /// The agent has failed permanently, for this reason.
    Failed(&'a str),
    /// Answer to [`Output::Lead`]: the endpoint of the workers' store.
    Publish {
        /// The round.
        round: u64,
        /// The host.
        addr: &'a str,
        /// The port.
        port: u16,
    },
    /// All workers of the agent have succeeded in this round.
    ///
    /// In a [recoverable](FormedRound::is_recoverable) round, the answer is
    /// [`Output::AllSucceeded`], once all workers of the round have succeeded.
    Succeeded(u64),
    /// The value is `true` if the agent can be a voter, and is not one yet.
    Willing(bool),
    /// The agent sends a message to viewers, or to all agents.
    Report(Report),
    /// The agent requests the state of the run.
    Ask,
    /// Bytes from the coordinator have arrived.
    Bytes(&'a [u8]),
    /// A connection is open; the value is the address of its local end.
    ///
    /// It is a numeric address and port, and must meet the conditions of [`NativeClient::from`].
    Connected(Option<&'a str>),
    /// The connection broke, or the driver could not connect, for this reason.
    Disconnected(String),
    /// The machine's deadline has passed.
    Tick,
}

/// Action that the machine requests from its driver, or a result for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Connect; the answer is [`Input::Connected`] or [`Input::Disconnected`].
    Dial,
    /// Close the connection, after sending all data.
    HangUp,
    /// Let the kernel end the connection after a time without an acknowledgement.
    Watch(Duration),
    /// Ask the other voters for the current coordinator.
    ///
    /// If it is another one, the driver drops the connection ([`Input::Disconnected`]).
    Search,
    /// The coordinator is, or will be, one of these voters or learners.
    ///
    /// The answer to an invitation to vote is [`Input::Willing`].
    Voters(VoterList),
    /// Send bytes to the coordinator.
    Send(Vec<u8>),
    /// Provide the workers' store, because this agent has rank 0.
    ///
    /// The answer is [`Input::Publish`].
    Lead {
        /// The round.
        round: u64,
    },
    /// Answer to [`Input::Join`]: the round is complete.
    Joined(FormedRound),
    /// Answer to [`Input::Join`]: the join failed.
    NotJoined(NativeFailure),
    /// Progress of a join that waits for nodes.
    Waiting {
        /// The nodes that have joined, and the limits of the join.
        waiting: Waiting,
        /// `true` for a log message, `false` for an update of a live display.
        is_reminder: bool,
    },
    /// Log that a complete round waits for the endpoint of the workers' store.
    ///
    /// The node with rank 0 has not sent it yet.
    AwaitingMaster {
        /// Number of the round.
        round: u64,
        /// Time until the join fails.
        left: Duration,
    },
    /// Answer to [`Input::Succeeded`]: all workers of the round have succeeded.
    AllSucceeded(u64),
    /// Messages of agents, for viewers or for all agents.
    Reports {
        /// Number that changes when a viewer attaches; 0 while there is none.
        watch: u32,
        /// The messages.
        messages: Vec<Vec<u8>>,
    },
    /// A new or renewed lease for the workers of a round.
    ///
    /// In a round that forms with a fence, the first lease comes before [`Output::Joined`].
    Lease {
        /// The round.
        round: u64,
        /// The end of the lease; `None` without a fence.
        ends: Option<Mono>,
    },
    /// In the joined round, the loss of a node becomes known within this time.
    ///
    /// Emitted when the connection to the coordinator breaks. Also emitted when the agent has
    /// reattached, because the coordinator may still be waiting for other agents.
    LossesKnownWithin(Duration),
    /// Log that the coordinator is missing.
    Missing(Missing),
    /// Log that the previous coordinator, at this address, may still be running.
    Undecided(String),
    /// The joined round has changed, the run is over, or the coordinator is lost.
    Changed(RoundChange),
    /// Answer to [`Input::Close`]: the run is closed.
    Closed,
    /// Answer to [`Input::Close`]: the coordinator has not confirmed it.
    NotClosed(NativeFailure),
    /// Answer to [`Input::Ask`].
    Status {
        /// `true` if the run is over.
        closed: bool,
        /// Number of nodes that wait for the next round.
        waiting: u32,
    },
}

/// A complete round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormedRound {
    /// Number of the round.
    pub round: u64,
    /// The agent's rank.
    pub rank: u32,
    /// Number of agents.
    pub world_size: u32,
    /// Ranks of the agent's workers, if the coordinator has assigned them.
    pub assignment: Option<Assignment>,
    /// Ranks of workers whose node was not in the last round.
    ///
    /// Empty in the first round, and if the coordinator has not sent them.
    pub replaced: Vec<u32>,
    /// Host of the workers' store.
    pub master_addr: String,
    /// Port of the workers' store.
    pub master_port: u16,
    /// `true` if the round survives the death of the coordinator.
    pub is_recoverable: bool,
}

/// Wait for a missing coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Error of the last attempt; `None` if there is a connection, but no message.
    pub what: Option<String>,
    /// Time since the coordinator's last message, or since the connection was lost.
    pub elapsed: Duration,
    /// Time for which the agent will keep trying.
    pub left: Duration,
    /// `true` if the workers have a fence.
    ///
    /// Without a coordinator they are suspended, and killed later.
    pub is_fenced: bool,
}

/// Reason for which a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NativeFailure {
    /// The coordinator has refused the agent.
    Refused(AgentRefusal),
    /// The agent has sent [`Input::Interrupt`].
    Interrupted,
    /// The coordinator is unreachable, or does not answer as it should.
    Unreachable {
        /// Description of the error.
        what: String,
        /// Time for which the agent has tried.
        elapsed: Duration,
    },
    /// Rank 0 did not send the endpoint of the workers' store in time.
    SilentLeader {
        /// The complete round.
        round: u64,
        /// Time since the round was complete.
        elapsed: Duration,
    },
}

/// Change of a round that the agent has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoundChange {
    /// The round is over.
    Membership {
        /// The round.
        round: u64,
        /// The reason, as a sentence.
        reason: String,
    },
    /// Another agent has failed permanently.
    PeerFailed {
        /// The node of the agent.
        node: String,
        /// The reason that it has sent.
        reason: String,
    },
    /// The run is over.
    Closed,
    /// The coordinator is lost.
    Lost {
        /// Description of the error.
        what: String,
        /// Time since the connection was lost.
        elapsed: Duration,
    },
}
