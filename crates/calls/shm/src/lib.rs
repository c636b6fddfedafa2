//! Memory that processes of one host share, and how it is passed between them.
//!
//! From the inside out:
//!
//! | module | is |
//! |---|---|
//! | `sealed` | memory without a name that nobody can shrink under our feet, and its mappings |
//! | `doorbell` | a waker that works across processes (eventfd) |
//! | `sleeping` | the flag by which a sleeping side asks for a wake-up, without losing one |
//! | `ring` | a stream of bytes in one direction |
//! | [`pass`] | descriptors over a Unix socket, and who the peer is |
//! | [`pair`] | two rings, offered by one process and accepted by another: a [`Link`] |
//! | [`arena`] | memory that peers read where it is |
//! | [`buffer`] | memory that one writes and many copy from |
//! | [`pool`] | buffers to receive into, used again and again |
//! | [`remote_read`] | reading memory of another process that it has not shared |
//! | [`spin`] | spinning, for at most a few microseconds |
//!
//! What holds everywhere:
//!
//! - **A peer can write anything into shared memory at any time.** So nothing that is read from it
//!   is trusted: positions are compared with the capacity that this side has chosen or checked,
//!   bytes are copied out before anybody looks at them, and no reference is ever made to bytes that
//!   the peer can write. A peer that breaks the protocol is an error ([`ShmError::Broken`]), never
//!   a panic and never an access outside of the memory.
//! - **A peer can take nothing away.** Descriptors are mapped only if they are sealed against
//!   shrinking, so that an access cannot end in SIGBUS.
//! - **An idle side sleeps**, on a descriptor that fits into `poll` and `epoll` beside sockets.
//! - A peer that *ends* is not noticed here: nothing in shared memory says so. The Unix socket over
//!   which the descriptors came says it, by its end of file, so keep it open.
//!
//! The only place of remote calls and process groups where code is `unsafe`; each use says which
//! invariant makes it sound.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "rdzv-shm needs Linux (sealed memory files): build it for a Linux target, in a container or virtual machine if need be"
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
pub use pair::{Link, Offer};
pub use pool::{Pool, PooledBuffer};
pub use ring::{Consumer, Producer};
