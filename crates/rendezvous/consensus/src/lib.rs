#![doc = include_str!("../README.md")]
//!
//! ```text
//!   driver ── Propose, Confirm, Change, Transfer ──► Consensus ── frames ──► peers
//!          ◄─ Apply, Confirmed, Role, Configuration ─         ◄─ frames ───
//! ```
//!
//! The algorithm is that of the library `raft`: Raft with pre-vote, check-quorum, learners and
//! joint changes of membership. This crate wraps it in a machine. Time, frames and requests go in;
//! frames, commands to apply and changes of role come out. Nothing is kept on disk. When a process
//! ends, its part of the log is lost. The id of a voter ([`VoterId`]) is therefore drawn at the
//! start of a process and never used again.
//!
//! The library has sharp edges, which this crate handles as follows:
//!
//! - The library's only randomness is the election timeout. Each member has a unique *voter index*
//!   and waits exactly `16 + index` ticks, and longer after split votes ([`Configuration`],
//!   `machine/election.rs`). If the leader's connection has closed, members campaign immediately,
//!   30 ms apart in the order of their indexes.
//! - The library ends the process on inconsistent messages. `guard.rs` compares each message with
//!   the log before the library sees it. A message that fails closes its connection.
//! - The library's messages are protobuf. Peers use the fixed format of [`wire`], so protobuf never
//!   parses bytes from a peer.
//! - A removed leader continues to lead, so [`Consensus`] refuses its removal: the leader must hand
//!   over first.
//!
//! | file | contents |
//! |---|---|
//! | `io.rs`, `voter.rs` | inputs and outputs; names of members |
//! | `machine.rs`, `machine/` | the machine |
//! | `configuration.rs` | members, and changes of them |
//! | `membership.rs` | the next change that a group needs |
//! | `guard.rs` | the rules for messages of peers |
//! | `log.rs` | the log, in memory |
//! | `wire/` | frames between members |
//! | `rule.rs` | rules that the simulation breaks on purpose |
//!
//! Invariants: **INV-Q1** A term has at most one leader. **INV-Q2** If two logs have an entry with
//! the same index and term, they are equal up to that entry. A committed entry is in the log of
//! every later leader. **INV-Q3** The same index means the same state. **INV-Q4** The id of a voter
//! never acts after the end of its process. **INV-Q5** An acknowledged command is in every later
//! state exactly once, and reads see it. **INV-Q6** The time of commands never goes back, and no
//! timer fires early. **INV-Q7** A connected majority has a leader within 5 s, and every command is
//! decided.

mod configuration;
mod guard;
mod io;
mod log;
mod machine;
pub mod membership;
mod rule;
mod voter;
pub mod wire;

pub use configuration::{Configuration, Kind, VoterChange};
pub use io::{Input, Output, Role};
pub use machine::{Consensus, Settings};
pub use rule::ConsensusRule;
pub use voter::VoterId;
