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
//! follow from one another (to leave a round and wait for the next; to come last and complete it) go
//! into one write: nobody else could have written between them either. Every write of a node that is
//! in some list carries its heartbeat.
//!
//! The copy is brought up to date when the store says that it changed, when a heartbeat in it would
//! be too old, and, if the store cannot tell of changes, at intervals. A new request replaces the one
//! under way, which is not answered any more.
//!
//! * `machine`: the drawing as code; `task`: what is under way; `schedule`: what has to be done
//!   when; `pace`: how not to do it all at once; `membership`: what is told about a complete
//!   round; `gone`: who is known to be gone by other means than heartbeats.

mod gone;
mod machine;
mod membership;
mod pace;
mod schedule;
mod task;

pub use machine::Participant;
