//! Values as messages: a body, and the memory of tensors beside it.
//!
//! A body is
//!
//! ```text
//! u32, little endian      how many bytes the table has; 0 without tensors and references
//! the value (postcard)    tensors and references in it are numbers of the table
//! the table (postcard)    what travels with the value
//! ```
//!
//! Serde knows no context, so a tensor cannot hand its bytes to the message that it is in. It
//! leaves itself in a place of the thread instead, which exists only while [`encode`] or [`decode`]
//! runs; anywhere else it refuses to be serialised. What is left there is dealt with when the value
//! is done: devices are mapped, the bytes to send are planned ([`rdzv_rpc_proto::tensor::plan()`]),
//! and references are forked, last of all, so that no fork is made for a message that is never
//! sent.
//!
//! Reading order: `peer` (what both directions know of the other side), `table`, `target` (the
//! device that a tensor is sent to), `outgoing`, `incoming`, `reader` (bodies of strangers),
//! `context` (the place of the thread).

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
pub use peer::{Direction, Incoming, Outgoing};
pub use references::{AdoptReferences, ForkReferences, deserialize_reference, serialize_reference};

use crate::{RpcError, RpcErrorKind};

/// The longest body, in bytes: 64 MiB. What is larger belongs in a tensor.
pub const BODY_LIMIT: usize = 64 << 20;

/// The most parts of a message.
pub const PART_LIMIT: usize = u16::MAX as usize;

/// Of the kind that all failures of this module are, but for those of devices and references.
fn refused(message: impl Into<String>) -> RpcError {
    RpcError::new(RpcErrorKind::Serialization, message)
}

#[cfg(test)]
mod tests;
