//! Messages: a serialised value and the memory of its tensors.
//!
//! A body has this form:
//!
//! ```text
//! u32, little endian      size of the table in bytes; 0 without tensors and references
//! the value (postcard)    tensors and references in it are numbers of the table
//! the table (postcard)    tensors and references of the value
//! ```
//!
//! Serde has no context, so a tensor cannot pass its bytes directly to its message. Instead it
//! stores itself in a thread-local slot, which exists only while [`encode`] or [`decode`] runs.
//! Outside of these functions the tensor refuses to be serialised. The content of the slot is
//! handled after the value: devices are mapped, and the bytes to send are planned
//! ([`rdzv_rpc_proto::tensor::plan()`]). References are forked last, so that no fork is made for a
//! message that is never sent.
//!
//! Reading order:
//!
//! - `peer`: facts about the other side, for both directions
//! - `table`, then `target`: the device to which a tensor is sent
//! - `outgoing`, `incoming`, then `reader`: bodies from untrusted peers
//! - `context`: the slots of the thread

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

/// Maximum size of a body: 64 MiB. Put larger data into a tensor.
pub const BODY_LIMIT: usize = 64 << 20;

/// Maximum number of parts of a message.
pub const PART_LIMIT: usize = u16::MAX as usize;

/// Creates an error of the kind of this module's own failures.
fn refused(message: impl Into<String>) -> RpcError {
    RpcError::new(RpcErrorKind::Serialization, message)
}

#[cfg(test)]
mod tests;
