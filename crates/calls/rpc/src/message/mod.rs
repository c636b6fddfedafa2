//! Messages: a serialised value, and the memory of its tensors.
//!
//! A body has this form:
//!
//! ```text
//! u32, little endian      size of the table in bytes; 0 without tensors and references
//! the value (postcard)    tensors and references in it are indices into the table
//! the table (postcard)    tensors and references of the value
//! ```
//!
//! Serde passes no context, so a tensor cannot add its bytes directly to its message. Instead it
//! stores itself in a thread-local slot that exists only while [`encode`] or [`decode`] runs.
//! Outside of these functions, serialising a tensor fails. The content of the slot is processed
//! after the value: devices are mapped, and the bytes to send are planned
//! ([`rdzv_rpc_proto::tensor::plan()`]). References are forked last, so that an error in an earlier
//! step leaves no fork.
//!
//! Reading order:
//!
//! - `peer`: information about the peer, for both directions
//! - `table`, then `target`: the device to which a tensor is sent
//! - `outgoing`, `incoming`, then `reader`: bodies from untrusted peers
//! - `context`: the thread-local slots

mod context;
mod incoming;
mod outgoing;
mod peer;
mod reader;
mod references;
mod table;
mod target;
mod tensors;
mod writer;

pub use context::LocalReference;
pub use incoming::decode;
pub use outgoing::encode;
pub use peer::{Direction, Incoming, Lending, Outgoing};
pub use references::{AdoptReferences, ForkReferences, deserialize_reference, serialize_reference};

use crate::{RpcError, RpcErrorKind};

/// Maximum size of a body: 64 MiB. Put larger data into a tensor.
pub const BODY_LIMIT: usize = 64 << 20;

/// Maximum number of parts in a message.
pub const PART_LIMIT: usize = u16::MAX as usize;

/// Creates an error of kind [`RpcErrorKind::Serialization`].
fn refused(message: impl Into<String>) -> RpcError {
    RpcError::new(RpcErrorKind::Serialization, message)
}

#[cfg(test)]
mod tests;
