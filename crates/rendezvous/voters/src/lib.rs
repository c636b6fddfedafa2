#![doc = include_str!("../README.md")]
//!
//! ```text
//!   operations of agents ──► Voter ──► Coordinator ──► Gate ──► events for agents, once committed
//!                              │                        │
//!   frames of other voters ────┴─► Consensus ◄── record ┘ ────► frames for other voters
//! ```
//!
//! The first 3 or 5 endpoints of a list are the endpoints of the voters. The process that listens
//! at such an endpoint is the voter there. The voters replicate the coordinator's record, a
//! [`Note`](rdzv_rendezvous_proto::coordinator::Note), in memory with `rdzv-consensus`. The leader
//! of the group runs the coordinator, and the coordinator's epoch is the term. A new coordinator
//! starts from the record and learns the rest from the agents that reattach, like a coordinator
//! that was restarted. No event that follows from a change of the record reaches an agent before
//! that change is committed. Every later coordinator of the group therefore knows the last
//! announced round.
//!
//! **One group.** A process is in at most one group. It draws a random id at its start, and another
//! one when it leaves a group. The process at the first endpoint founds a group after every other
//! endpoint has reported that it is in no group. A group decides with more than half of its ids. Of
//! two groups with all their voters, each needs more than half of the endpoints to decide, and so
//! one process in both. A process that restarts after its death has a new id and knows nothing.
//! While a live process is a member of the old group, no process founds another group.
//!
//! **A new process at an endpoint.** A new process at the endpoint of a member proves that the old
//! process has ended. The leader lets the new process learn the log, and then vote in place of the
//! old one.
//!
//! **A lost group.** Every endpoint may have a connected process while these processes are no
//! majority of the group. Then the other members of the group have ended, and the group can never
//! decide again. The remaining members leave it as if they had restarted, and found a new group.
//! The new group does not know the rounds of the old one, so agents that hold such a round drop it
//! and join again.
//!
//! **A store coordinates.** A coordinator that runs beside an agent hands over after one second
//! without a decision, if another voter is a store. Afterwards the death of one machine costs
//! either a coordinator or workers, not both.
//!
//! **Without a list**, a group starts with one voter, and agents join it (`machine/open.rs`).
//!
//! | file | content |
//! |---|---|
//! | `lib.rs` | types |
//! | `machine.rs` | the machine: routes each input |
//! | `machine/membership.rs` | the processes of the group: founding, invitations, replacements |
//! | `machine/view.rs` | the state of the group, for status requests |
//! | `machine/open.rs` | a group that agents may join |
//! | `machine/takeover.rs` | an open group that has lost its majority |
//! | `machine/leading.rs` | the decisions of the group, and the coordinator at its leader |
//! | `machine/agents.rs` | the agents that can become voters |
//! | `peers.rs` | the processes at the other endpoints |
//! | `command.rs` | the record of a run as a command of the log |
//! | `search_order.rs` | for agents: the order in which they ask voters for the coordinator |

mod command;
mod machine;
mod peers;
mod search_order;

use std::fmt;
use std::time::Duration;

pub use self::machine::Voter;
pub use self::search_order::{ATTEMPT, SearchOrder};
use rdzv_consensus as consensus;
use rdzv_core::ident::ConnId;
use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::{Rule, coordinator};

pub use rdzv_consensus::VoterId;
pub use rdzv_consensus::wire::{ConsensusWireError, ControlFrame, FRAME_BOUND, opcode};

/// Settings of a voter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Endpoints of the voters, in the order that every voter has.
    ///
    /// In a group that agents may join, these are the known endpoints, and the first one is the
    /// endpoint of the job.
    pub endpoints: Vec<String>,
    /// Settings of a group that agents may join.
    ///
    /// If `None`, the voters are the processes at `endpoints`.
    pub open: Option<Open>,
    /// Endpoint index of this process.
    pub own: usize,
    /// `true` if this process is only a voter, without an agent.
    pub is_store: bool,
    /// Instance of the agent in this process, as the agent's joins report it.
    ///
    /// `None` if the agent has no keeper process, or if there is no agent.
    pub agent: Option<u64>,
    /// Seed of the random ids of this process, and of groups with a list.
    ///
    /// The process draws the seed at its start, so that its ids differ from all others.
    pub seed: u64,
    /// Time for which agents wait for the next coordinator.
    pub timeout: Duration,
    /// Time after which a silent machine is lost.
    ///
    /// If the leader is silent, the group elects another one in about a third of this time.
    pub node_timeout: Duration,
    /// Rules that are in force: all of them, except in a simulation.
    pub rules: Rules<Rule>,
}

/// Settings of a group that agents may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// Run that the group serves.
    pub run: String,
    /// Maximum number of voters; odd.
    pub most: usize,
    /// Way in which this process enters the group.
    pub start: Start,
}

/// Way in which a process enters a group that agents may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// Found the group, or continue as its only voter.
    Alone {
        /// Record of the previous process here, which was the only voter.
        ///
        /// A new record if there was no such process.
        note: Box<coordinator::Note>,
        /// Addresses of the coordinator, and user statements about its predecessors.
        origin: coordinator::Origin,
    },
    /// Return: the previous process here was a member of a group with others.
    Returns {
        /// Record of the previous process.
        note: Box<coordinator::Note>,
    },
    /// Wait for a member to invite this process.
    Invited,
}

impl Settings {
    /// Returns the consensus settings; 60 ticks make one `node_timeout`.
    fn consensus(&self) -> consensus::Settings {
        consensus::Settings {
            tick: self.node_timeout / 60,
            ..consensus::Settings::default()
        }
    }
}

/// Action that a voter requests from its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Output of the coordinator or the voter here, except a record.
    Coordinator(coordinator::Output),
    /// Send a frame to the process at an endpoint.
    ///
    /// The frame may be lost if there is no connection.
    ToPeer {
        /// Endpoint index of the receiver.
        index: usize,
        /// The whole frame.
        frame: Vec<u8>,
    },
    /// Close a connection that is no longer needed; the peer did nothing wrong.
    ///
    /// The text is the reason.
    Dismiss(ConnId, String),
    /// First frames for connections to other endpoints.
    ///
    /// Send them at the start of every future connection, and now over every existing one.
    Greet(Vec<u8>),
    /// Connect to this address from now on for an endpoint index.
    ///
    /// `None`: connect to no process for that index.
    Call {
        /// Endpoint index that the address belongs to.
        index: usize,
        /// Address to connect to (`host:port`).
        address: Option<String>,
    },
    /// Write the record for the next process here.
    ///
    /// Write it before applying any later output. Only a group that agents may join requests this.
    Note(Box<coordinator::Note>),
    /// Send bytes over a connection.
    Reply(ConnId, Vec<u8>),
    /// The coordinator here has ended: remove the keys that it stored.
    SteppedDown,
    /// Close all connections to other endpoints; no more are needed.
    Retire,
    /// Log this event.
    Log(Fact),
}

/// Event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The group was founded.
    Founded {
        /// Endpoints of the voters.
        voters: Vec<String>,
    },
    /// This process now runs the coordinator.
    Coordinates {
        /// Endpoint of the previous coordinator, if there was one.
        before: Option<String>,
        /// Current term.
        term: u64,
    },
    /// Another process now runs the coordinator.
    Follows {
        /// Endpoint of the coordinator.
        coordinator: String,
        /// Endpoint of the previous coordinator, if there was one.
        before: Option<String>,
        /// Current term.
        term: u64,
    },
    /// This voter no longer knows a leader.
    Leaderless {
        /// Endpoint of the lost coordinator.
        coordinator: String,
    },
    /// A new process votes in place of the process that ended at this endpoint.
    Replaced {
        /// Endpoint of the voter.
        endpoint: String,
    },
    /// Voters have left, and no process has replaced them.
    Fewer {
        /// Endpoints of the remaining voters.
        voters: Vec<String>,
    },
    /// The members of a group that agents may join have changed.
    Voters {
        /// Endpoints of the voters; the coordinator's is first.
        voters: Vec<String>,
        /// Endpoints of the members that learn.
        learners: Vec<String>,
    },
    /// This process left its group for another group of the same run.
    ///
    /// The other group has a later round, or the same round and a higher id.
    Merged {
        /// Endpoint of a member of the other group.
        other: String,
        /// `true` if the group that this process left had a round; that round is over.
        had_round: bool,
    },
    /// The group had lost its majority, and this process continues from its record.
    TookOver,
    /// This process has left a group that can never decide again.
    GaveUp,
    /// The process at an endpoint cannot be a voter of this group.
    Unsuitable {
        /// Endpoint that the process reported.
        endpoint: String,
        /// Reason.
        why: &'static str,
    },
}

impl Fact {
    /// `true` if the log shows this event at the default level.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Coordinates { before, .. } | Self::Follows { before, .. } => before.is_some(),
            Self::GaveUp | Self::TookOver | Self::Unsuitable { .. } | Self::Merged { .. } => true,
            Self::Founded { .. }
            | Self::Leaderless { .. }
            | Self::Replaced { .. }
            | Self::Fewer { .. }
            | Self::Voters { .. } => false,
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinates { before, term } => {
                formatter.write_str("this process coordinates the rendezvous")?;
                write_succession(before.as_deref(), *term, formatter)
            }
            Self::Follows {
                coordinator,
                before,
                term,
            } => {
                write!(formatter, "the coordinator is at {coordinator}")?;
                write_succession(before.as_deref(), *term, formatter)
            }
            Self::Leaderless { coordinator } => write!(
                formatter,
                "the coordinator at {coordinator} is lost; the voters are electing another"
            ),
            Self::Replaced { endpoint } => write!(
                formatter,
                "the process at {endpoint} replaces the voter that exited there"
            ),
            Self::Fewer { voters } => write!(
                formatter,
                "voters have left; there {} now {}: {}",
                if voters.len() == 1 { "is" } else { "are" },
                voters.len(),
                voters.join(", ")
            ),
            Self::Voters { voters, learners } if let [one] = &voters[..] => {
                write!(
                    formatter,
                    "1 voter: {one}; if its machine is lost, the other nodes wait for it"
                )?;
                match &learners[..] {
                    [] => Ok(()),
                    [first, ..] => write!(formatter, "; if it exits normally, {first} takes over"),
                }
            }
            Self::Founded { voters } | Self::Voters { voters, .. } => write!(
                formatter,
                "{} voters: {}; the rendezvous continues as long as more than half of them are \
                 running",
                voters.len(),
                voters.join(", ")
            ),
            Self::Merged { other, had_round } => write!(
                formatter,
                "the coordinator of this run is at or reachable through {other}; this process leaves {} and joins it",
                if *had_round {
                    "its own group with its round"
                } else {
                    "its own group, which had no round,"
                }
            ),
            Self::TookOver => formatter.write_str(
                "more than half of the voters exited, and all were restarted; this process \
                 continues from its record",
            ),
            Self::GaveUp => formatter.write_str(
                "more than half of the voters exited; the others form a new group and drop earlier \
                 rounds",
            ),
            Self::Unsuitable { endpoint, why } => {
                write!(
                    formatter,
                    "the process at {endpoint} cannot be a voter here: {why}"
                )
            }
        }
    }
}

/// Appends the previous coordinator, if there was one, and the term.
fn write_succession(
    before: Option<&str>,
    term: u64,
    formatter: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match before {
        None => write!(formatter, " (term {term})"),
        Some(before) => write!(
            formatter,
            " in place of {before} now (term {term}); workers continue"
        ),
    }
}
