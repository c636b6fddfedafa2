#![doc = include_str!("../README.md")]
//!
//! The modules, from the inside out:
//!
//! | module | content |
//! |---|---|
//! | `sealed` | anonymous memory that no process can shrink, and its mappings |
//! | `doorbell` | a waker that works across processes (eventfd) |
//! | `sleeping` | the flag by which a sleeping side requests a wake-up, so that none is lost |
//! | `ring` | a stream of bytes in one direction |
//! | [`pass`] | descriptors sent over a Unix socket, and the identity of the peer |
//! | [`pair`] | rings that one process offers to another: two (a [`SharedLink`]) or one |
//! | [`arena`] | memory that peers read in place |
//! | [`buffer`] | memory that one process writes and many processes copy from |
//! | [`pool`] | reusable receive buffers |
//! | [`remote_read`] | reads of another process's memory that is not shared |
//! | [`spin`] | spinning for a short time before a sleep |
//!
//! Rules of the whole crate:
//!
//! - **A peer can write anything into shared memory at any time.** This side therefore trusts
//!   nothing that it reads there. It compares positions with the capacity that it has chosen or
//!   checked. It copies bytes out before it interprets them, and, except for atomic words and
//!   bytes in an arena, never creates a reference to bytes that the peer can write. A peer that
//!   breaks the protocol causes wrong bytes or an error ([`ShmError::Broken`]), but never a panic
//!   or an access outside of the memory.
//! - **A peer can take nothing away.** This side maps a descriptor only if it is sealed against
//!   shrinking, so an access cannot end in SIGBUS.
//! - **An idle side sleeps**, on a descriptor that `poll` and `epoll` accept beside sockets.
//! - Shared memory does not show the *end* of a peer. The Unix socket over which the descriptors
//!   came reports the end as end of file, so keep that socket open.
//!
//! Outside this crate, remote calls and process groups have `unsafe` code only in
//! `rdzv_rpc::dlpack`, in `rdzv_cuda` and in the `memory` module of the Python extension. Each use
//! states the invariant that makes it sound.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "rdzv-shm needs Linux (sealed memory files): build it for a Linux target, in a container or \
     virtual machine if necessary"
);

pub mod arena;
pub mod buffer;
mod doorbell;
mod error;
pub mod pair;
pub mod pass;
pub mod pool;
pub mod remote_read;
mod ring;
mod sealed;
mod sleeping;
pub mod spin;

pub use arena::{Arena, Block, Leases, Location, is_leased};
pub use buffer::{PeerBuffer, SharedBuffer};
pub use error::{Result, ShmError};
pub use pair::{Offer, SharedLink};
pub use pool::{Pool, PooledBuffer};
pub use ring::{Consumer, Producer};
