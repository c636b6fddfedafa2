//! A consensus group that lives in memory: commands that a majority of voters has, in one order.
//!
//! ```text
//!   driver ── Propose, Confirm, Change, Transfer ──► Consensus ── frames ──► peers
//!          ◄─ Apply, Confirmed, Role, Configuration ─         ◄─ frames ───
//! ```
//!
//! The algorithm is the library `raft`'s (Raft with pre-vote, check-quorum, learners and joint
//! changes of membership). This crate makes a machine of it: time, frames and requests in; frames,
//! commands to apply and changes of role out. Nothing is kept on disk. A process that ends takes
//! its part of the log along, so a voter's id ([`VoterId`]) is drawn at the start of a process and
//! never used again.
//!
//! The sharp edges of the library, and where they are dealt with:
//!
//! * Its only randomness is the election timeout. Each member has a *place*, which no other member
//!   has, and waits exactly `16 + place` ticks, and longer after split votes ([`Configuration`],
//!   `machine/election.rs`). Where the leader's connection has closed, members stand at once, 30 ms
//!   apart in the order of places.
//! * It ends the process on inconsistent messages. `guard.rs` compares each message with the log
//!   before the library sees it; a message that fails closes its connection.
//! * It has messages in the form of protobuf. Peers speak the fixed form of [`wire`], and nothing
//!   that a peer sends is parsed by protobuf.
//! * A leader that is removed goes on leading, so [`Consensus`] refuses the change; it hands over
//!   first.
//!
//! | file | contents |
//! |---|---|
//! | `io.rs`, `voter.rs` | inputs and outputs; names of members |
//! | `machine.rs`, `machine/` | the machine |
//! | `configuration.rs` | members, and changes of them |
//! | `membership.rs` | the next change that a group needs |
//! | `guard.rs` | the rules for messages of peers |
//! | `log.rs` | the log, in memory |
//! | `wire.rs` | frames between members |
//!
//! Invariants: **INV-Q1** at most one leader per term. **INV-Q2** two logs that have an entry of
//! one index and term have the same entries up to it, and an entry that was committed is in the log
//! of every later leader. **INV-Q3** the same index means the same state. **INV-Q4** an id of a
//! voter never acts after the end of its process. **INV-Q5** an acknowledged command is in every
//! later state, once, and reads see it. **INV-Q6** the time of commands never goes back, and no
//! timer fires early. **INV-Q7** a majority that is connected has a leader within 5 s, and every
//! command is decided.

mod configuration;
mod guard;
mod io;
mod log;
mod machine;
pub mod membership;
mod rule;
mod voter;
pub mod wire;

pub use configuration::{Change, Configuration, Kind};
pub use io::{Input, Output, Role};
pub use machine::{Consensus, Settings};
pub use rule::Rule;
pub use voter::VoterId;
