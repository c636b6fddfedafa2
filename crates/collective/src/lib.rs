//! A small process group over TCP: `barrier`, `broadcast`, `all_reduce`.
//!
//! ```no_run
//! use std::time::Duration;
//! use rdzv_collective::{ProcessGroup, Reduce};
//! # fn example(store: &dyn rdzv_store::Store) -> Result<(), rdzv_collective::CollectiveError> {
//! let mut group = ProcessGroup::new(store, 0, 4, Duration::from_secs(60))?;
//! let mut gradient = vec![0.5_f32; 1000];
//! group.all_reduce(&mut gradient, Reduce::Average)?;
//! # Ok(())
//! # }
//! ```
//!
//! How it works, from the inside out:
//!
//! - `schedule` decides: for each algorithm, what one rank sends to and receives from whom in each
//!   step. Pure functions; a new collective is mostly a new schedule.
//! - `exchange` carries out a schedule on a buffer, in pieces of bounded size.
//! - `mesh` owns the connections of one rank and the one place that waits. Nothing runs in the
//!   background: there are no threads, and no CPU is used outside of calls.
//! - `reception` admits peers and refuses strangers.
//! - `connection` and `wire` are the sockets and the bytes on them; `bootstrap` is how the ranks find
//!   one another through a store.
//!
//! What holds for every operation:
//!
//! - All ranks call the same operations in the same order with the same sizes. A rank that does not
//!   is told so by an error that names both calls.
//! - The result is the same to the last bit on all ranks.
//! - A failure (a dead peer, a timeout, a mismatch) ends the operation with an error that names the
//!   rank at fault, is passed on to the other ranks, and is final: the group is broken.

mod barrier;
mod bootstrap;
mod broadcast;
mod call;
mod connection;
mod element;
mod error;
mod exchange;
mod group;
mod mesh;
mod reception;
mod reduce;
mod schedule;
mod wire;

pub use bootstrap::{GroupOptions, address_towards};
pub use call::{Call, Operation};
pub use element::{Element, ElementType};
pub use error::{Cause, CollectiveError, Refusal};
pub use group::ProcessGroup;
pub use reduce::Reduce;
