#![doc = include_str!("../README.md")]
//!
//! | from → to | operations |
//! |---|---|
//! | none | [`barrier`](ProcessGroup::barrier), [`monitored_barrier`](ProcessGroup::monitored_barrier) (names missing ranks) |
//! | one → one | [`send`](ProcessGroup::send), [`receive`](ProcessGroup::receive); asynchronous: [`PointToPoint`] |
//! | one → all | [`broadcast`](ProcessGroup::broadcast), [`scatter`](ProcessGroup::scatter), [`broadcast_object`](ProcessGroup::broadcast_object) |
//! | all → one | [`gather`](ProcessGroup::gather), [`reduce`](ProcessGroup::reduce) |
//! | all → all | [`all_gather`](ProcessGroup::all_gather), [`all_gather_unequal`](ProcessGroup::all_gather_unequal), [`all_gather_objects`](ProcessGroup::all_gather_objects), [`all_reduce`](ProcessGroup::all_reduce), [`reduce_scatter`](ProcessGroup::reduce_scatter), [`all_to_all`](ProcessGroup::all_to_all), [`all_to_all_split`](ProcessGroup::all_to_all_split), [`all_to_all_unequal`](ProcessGroup::all_to_all_unequal) |
//!
//! The layers, from the inside out:
//!
//! - `schedule` determines for each algorithm the messages of a rank in each step, and the peer of
//!   each message. It consists of pure functions. A new collective operation is mostly a new
//!   schedule.
//! - `exchange` runs a schedule on a buffer, in pieces of bounded size. If a group has at most 16
//!   ranks and all are on one host, `shared_reduction` reduces large buffers without a schedule.
//! - `mesh` owns the connections of one rank for collective operations, and contains the only code
//!   that blocks in these operations (with `polling`). A group without a queue and without messages
//!   has no threads, and uses no CPU time outside of calls.
//! - `acceptor` admits peers and refuses other connections.
//! - `socket`, `outbound`, `inbound` and `wire` implement the sockets (Unix sockets on one host,
//!   TCP otherwise) and the bytes on them. `shared` is the memory that carries data in place of
//!   sockets on one host. `bootstrap` exchanges the ranks' endpoints through a store.
//! - `messages` sends messages between two ranks, on separate connections and a separate thread.
//!   `matching` assigns each message to a receive, and is pure.
//! - `queue` runs operations asynchronously, on a separate thread. `work` is the handle to an
//!   asynchronous operation. `interrupt` lets another thread abort an operation.

#![warn(clippy::missing_errors_doc)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "rdzv-collective needs Linux (epoll and /proc): build it for a Linux target, in a container or \
     virtual machine if necessary"
);

mod acceptor;
mod all_to_all;
mod barrier;
mod bootstrap;
mod broadcast;
mod broken;
mod call;
mod element;
mod error;
mod exchange;
mod gather;
mod group;
mod inbound;
mod interrupt;
mod matching;
mod mesh;
mod messages;
mod object;
mod outbound;
mod point;
mod polling;
mod queue;
mod reduce;
mod reduce_op;
mod running;
mod schedule;
mod shared;
mod shared_reduction;
mod socket;
mod wire;
mod work;

pub use bootstrap::GroupOptions;
pub use call::{Call, GroupOperation};
pub use element::{Bool, Element, ElementType};
pub use error::{CollectiveError, Result};
pub use group::ProcessGroup;
pub use half::{bf16, f16};
pub use messages::{PointToPoint, ReceiveBuffer, Received, SendBuffer};
pub use queue::GroupQueue;
pub use rdzv_store::address_towards;
pub use reduce_op::ReduceOp;
pub use wire::{AbortCause, GroupRefusal};
pub use work::Work;
