//! Voters: several processes each have a coordinator in reserve, and a majority of them says whose is in use.
//!
//! ```text
//!   operations of agents ──► Voter ──► Coordinator ──► Gate ──► events for agents, once the note is committed
//!                              │                        │
//!   frames of other voters ────┴───► Consensus ◄── note ┘ ──► frames for other voters
//! ```
//!
//! The first 3 or 5 endpoints of a list are the *places* of the voters; the process that listens at
//! one of them is the voter there. The voters replicate the coordinator's
//! [note](rdzv_rendezvous_proto::coordinator::Note) with `rdzv-consensus`, in memory. The leader of
//! the group has the coordinator, whose epoch is the term. It begins with the note and learns the
//! rest from the agents that reattach, as a coordinator does that was started again. Nothing that
//! follows from a note is sent before the note is committed, so a round that was announced is known
//! to every later coordinator.
//!
//! **One group.** A process takes part in one group in its life, under an id that it has drawn at
//! its start. The process at the first place founds a group when every other place has told it that
//! it is in none. A group decides with more than half of its ids. So two groups that decide would
//! need more than half of the places each, with a process that is in both. A process that comes
//! back after its death has a new id and knows nothing; as long as one member of the old group is
//! there, nobody founds another one.
//!
//! **A place is taken again.** A new process at the place of a member proves that the one before
//! has ended. The leader has it learn the log, and then vote in place of the old one.
//!
//! **A group that is lost.** Where every place has a process in contact, and these are no majority
//! of the group, the others of the group have ended and it can never decide again. Its members
//! leave it, as if they had been started anew, and a new group is founded. That knows nothing of
//! the rounds of the old one, so agents that hold one give it up and join anew.
//!
//! **A store coordinates.** After a second in which nothing was decided, a coordinator beside an
//! agent hands over to a voter that is a store, if there is one: the death of a machine then costs
//! either a coordinator or workers.
//!
//! **Without a list**, a group begins with one voter, and agents join it (`machine/open.rs`).
//!
//! | file | content |
//! |---|---|
//! | `lib.rs` | types |
//! | `machine.rs` | the machine: which input goes where |
//! | `machine/membership.rs` | the processes of the group: founding, invitations, replacements |
//! | `machine/view.rs` | how the group stands, for those who ask |
//! | `machine/open.rs` | a group that agents may join |
//! | `machine/takeover.rs` | such a group after the end of all its voters |
//! | `machine/leading.rs` | what the group has decided, and the coordinator at its leader |
//! | `peers.rs` | the processes at the other places |
//! | `command.rs` | a note of a run as a command of the log |
//! | `search_order.rs` | the agents' side: which place is asked for the coordinator next |

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
pub use rdzv_consensus::wire::{FRAME_BOUND, Frame, WireError, opcode};

/// The settings of a voter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The endpoints of all places in their order, as every voter has them. Of a group that agents may join, those that are
    /// known, the endpoint of the job first.
    pub places: Vec<String>,
    /// Agents may join the group; else its voters are those at the places.
    pub open: Option<Open>,
    /// The index of this process' place.
    pub own: usize,
    /// No agent runs here: this process is only a voter.
    pub is_store: bool,
    /// The instance of the agent in this process, as its joins say it; none if it has no keeper, or there is no agent.
    pub agent: Option<u64>,
    /// Where the numbers come from by which this process, and a group that it founds, differ from all others; drawn at
    /// its start.
    pub seed: u64,
    /// The time for which agents wait for the next coordinator.
    pub timeout: Duration,
    /// The time for which a machine may be silent; the group elects another leader in a third of it.
    pub node_timeout: Duration,
    /// All rules, except in a simulation.
    pub rules: Rules<Rule>,
}

/// A group that agents may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// The run that it is there for.
    pub run: String,
    /// The most voters; odd.
    pub most: usize,
    /// The part of this process in it.
    pub start: Start,
}

/// The way of a process into a group that agents may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// It founds the group, or goes on as its only voter.
    Alone {
        /// The note of the process before it, which was the only voter; a new one if there was none.
        note: Box<coordinator::Note>,
        /// The place of the coordinator, and the words of people about those before it.
        origin: coordinator::Origin,
    },
    /// The process before it was a member of a group with others.
    Returns {
        /// The note of that process.
        note: Box<coordinator::Note>,
    },
    /// A member invites it.
    Invited,
}

impl Settings {
    /// Those of the group: a tick is a sixtieth of the time for which a machine may be silent.
    fn consensus(&self) -> consensus::Settings {
        consensus::Settings {
            tick: self.node_timeout / 60,
            ..consensus::Settings::default()
        }
    }
}

/// Something that a voter wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// An output of the coordinator here; never a note.
    Coordinator(coordinator::Output),
    /// A frame for the process at a place. It may be lost if there is no connection.
    ToPeer {
        /// The index of the place.
        place: usize,
        /// The whole frame.
        frame: Vec<u8>,
    },
    /// A connection is of no use any more, and nothing is wrong with the peer: end it.
    Dismiss(ConnId, String),
    /// The first frames of every connection to another place from here on; to be sent on those that there are, too.
    Greet(Vec<u8>),
    /// Call the process at this address from here on, as that of a place, or no process there any more.
    Call {
        /// The index of the place.
        place: usize,
        /// `host:port`.
        address: Option<String>,
    },
    /// Keep this for the next process here, before any later output is applied. Only of a group that agents may join.
    Note(Box<coordinator::Note>),
    /// Bytes for the other end of a connection.
    Reply(ConnId, Vec<u8>),
    /// The coordinator here is no more: what it has stored is to be removed.
    SteppedDown,
    /// No connection to another place is needed any more.
    Retire,
    /// Log this.
    Log(Fact),
}

/// Something that people may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The group has been founded.
    Founded {
        /// The endpoints of the voters.
        voters: Vec<String>,
    },
    /// The coordinator is here now.
    Coordinates {
        /// The endpoint of the one before, if there was one.
        before: Option<String>,
        /// The term.
        term: u64,
    },
    /// The coordinator is elsewhere now.
    Follows {
        /// Its endpoint.
        coordinator: String,
        /// The endpoint of the one before, if there was one.
        before: Option<String>,
        /// The term.
        term: u64,
    },
    /// The coordinator is not heard of any more.
    Leaderless {
        /// Its endpoint.
        coordinator: String,
    },
    /// The process at a place votes in place of the one that has ended there.
    Replaced {
        /// The endpoint.
        place: String,
    },
    /// Voters have left, and nobody has taken their places.
    Fewer {
        /// The endpoints of those that vote now.
        voters: Vec<String>,
    },
    /// The members of a group that agents may join, after a change.
    Voters {
        /// The endpoints of those that vote, the coordinator's first.
        voters: Vec<String>,
        /// And of one that learns.
        learners: Vec<String>,
    },
    /// There is another group of the run, which has a later round; this process has left its own one.
    Merged {
        /// The endpoint of a member of the other one.
        other: String,
        /// Its own had a round, which is over.
        had_round: bool,
    },
    /// All voters have ended at once, and this process goes on from the newest note.
    TookOver,
    /// This process has left a group that can never decide again.
    GaveUp,
    /// A process at a place cannot be a voter of this group.
    Unsuitable {
        /// The endpoint that it names.
        place: String,
        /// Why not.
        why: &'static str,
    },
}

impl Fact {
    /// Whether people are to see it who have not asked for more than what is unusual.
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
                in_place_of(before.as_deref(), *term, formatter)
            }
            Self::Follows {
                coordinator,
                before,
                term,
            } => {
                write!(formatter, "the coordinator is at {coordinator}")?;
                in_place_of(before.as_deref(), *term, formatter)
            }
            Self::Leaderless { coordinator } => write!(
                formatter,
                "the coordinator at {coordinator} is not heard of any more; the voters elect another one"
            ),
            Self::Replaced { place } => write!(
                formatter,
                "the process at {place} votes in place of the one that has ended there"
            ),
            Self::Fewer { voters } => write!(
                formatter,
                "voters have left; now there {} {}: {}",
                if voters.len() == 1 { "is" } else { "are" },
                voters.len(),
                voters.join(", ")
            ),
            Self::Voters { voters, learners } if let [one] = &voters[..] => {
                write!(
                    formatter,
                    "1 voter: {one}; if its machine is lost, the others wait for it"
                )?;
                match &learners[..] {
                    [] => Ok(()),
                    [first, ..] => write!(formatter, "; if it ends in order, {first} goes on"),
                }
            }
            Self::Founded { voters } | Self::Voters { voters, .. } => write!(
                formatter,
                "{} voters: {}; the rendezvous goes on as long as more than half of them live",
                voters.len(),
                voters.join(", ")
            ),
            Self::Merged { other, had_round } => write!(
                formatter,
                "the coordinator of this run is at {other}, or known there; this process gives {} up and follows it",
                match had_round {
                    true => "its own, with the round of that,",
                    false => "its own, which had no round,",
                }
            ),
            Self::TookOver => formatter.write_str(
                "more than half of the voters have ended at once, and all were started again; this process goes on from \
                 its note",
            ),
            Self::GaveUp => formatter.write_str(
                "more than half of the voters have ended at once, so the voters begin anew; rounds of before are given up",
            ),
            Self::Unsuitable { place, why } => {
                write!(formatter, "the process at {place} cannot be a voter here: {why}")
            }
        }
    }
}

/// The rest of a sentence about the coordinator: the one before it, if there was one, and the term.
fn in_place_of(before: Option<&str>, term: u64, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    match before {
        None => write!(formatter, " (term {term})"),
        Some(before) => write!(
            formatter,
            " in place of {before} now (term {term}); workers are not touched for that"
        ),
    }
}
