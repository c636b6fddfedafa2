//! Memory that processes of one host share, and how they tell one another of it.
//!
//! From the inside out:
//!
//! | module | is |
//! |---|---|
//! | `sealed` | memory without a name that nobody can shrink under our feet, and its mappings |
//! | `doorbell` | a descriptor that wakes up who sleeps on it |
//! | `sleeping` | how one side tells the other that it sleeps, without a wake-up being lost |
//! | `ring` | a stream of bytes in one direction |
//! | [`pass`] | descriptors over a Unix socket, and who the peer is |
//! | [`pair`] | two rings, offered by one process and accepted by another: a [`Link`] |
//! | [`arena`] | memory that peers read where it is |
//! | [`board`] | memory that one writes and many copy from |
//! | [`pool`] | buffers to receive into, used again and again |
//! | [`other_process`] | reading what another process has not shared |
//! | [`spin`] | waiting awake, for at most a few microseconds |
//!
//! What holds everywhere:
//!
//! - **A peer can write anything into shared memory at any time.** So nothing that is read from it is
//!   trusted: positions are compared with the capacity that this side has chosen or checked, bytes are
//!   copied out before anybody looks at them, and no reference is ever made to bytes that the peer can
//!   write. A peer that breaks the protocol is an error ([`ShmError::Broken`]), never a panic and never
//!   an access outside of the memory.
//! - **A peer can take nothing away.** Descriptors are mapped only if they are sealed against shrinking, so
//!   that an access cannot end in SIGBUS.
//! - **Who has nothing to do sleeps**, on a descriptor that fits into `poll` and `epoll` beside sockets.
//! - A peer that *ends* is not noticed here: nothing in shared memory says so. The Unix socket over which
//!   the descriptors came says it, by its end of file, so keep it open.
//!
//! The only place of remote calls and process groups where code is `unsafe`; each use says which
//! invariant makes it sound.

pub mod arena;
pub mod board;
mod doorbell;
mod error;
pub mod other_process;
pub mod pair;
pub mod pass;
pub mod pool;
mod ring;
mod sealed;
mod sleeping;
pub mod spin;

pub use arena::{Arena, Block, Exchange, Location};
pub use board::{Board, PeerBoard};
pub use error::ShmError;
pub use pair::{Link, Offer};
pub use pool::{Pool, PoolOptions, PooledBuffer};
pub use ring::{Consumer, Producer};
