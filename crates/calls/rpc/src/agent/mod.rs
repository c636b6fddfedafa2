//! Top layer of the crate: start, shutdown and handle of an agent.
//!
//! | layer | task |
//! |---|---|
//! | here | start, shutdown, gathers; composes the layers below |
//! | [`crate::call`] | typed functions |
//! | [`crate::rref`] | remote references |
//! | [`crate::runtime`] | members, peers, threads, calls, the answering side of a connection |
//! | [`crate::service`] | offered functions, the threads that they run on, cancellation |
//! | [`crate::channel`] | the calling side of a connection |
//! | [`crate::bulk`] | large parts |
//! | [`crate::wire`], [`crate::transport`] | frames, bytes |

pub(crate) mod gather;

mod handle;
mod init;
mod members;
#[cfg(test)]
pub(crate) mod tests;
mod transports;

pub use handle::{PeerTraffic, Traffic};
pub use init::RpcAgentBuilder;
