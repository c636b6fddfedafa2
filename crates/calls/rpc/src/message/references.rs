//! Serialisation of remote references within a message.
//!
//! This module does not interpret references. It only transports local references and the bytes of
//! forks.

use serde::{Deserializer, Serializer};

use super::context::{self, LocalReference};
use crate::RpcError;

/// Code that forks the references in an outgoing message.
pub trait ForkReferences {
    /// Creates a fork of `local` for the destination.
    ///
    /// # Errors
    ///
    /// Returns the reason why the reference cannot be passed on. In this case the message is not
    /// sent.
    fn fork(&mut self, local: &LocalReference) -> Result<Vec<u8>, RpcError>;
}

/// Code that adopts the forks in an incoming message.
pub trait AdoptReferences {
    /// Returns the reference that the sender forked.
    ///
    /// Dropping the reference releases the fork.
    ///
    /// # Errors
    ///
    /// Returns the reason why the fork cannot be adopted. In this case the message is not decoded.
    fn adopt(&mut self, fork: &[u8]) -> Result<LocalReference, RpcError>;
}

/// Serialises a reference as an index; passes `local` to [`ForkReferences`].
///
/// # Errors
///
/// Fails outside of a message.
pub fn serialize_reference<S: Serializer>(
    local: LocalReference,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let outside = "Can not pickle rref in python pickler, rref can only be pickled when using RPC";
    context::give(|given| &mut given.references, local, outside, serializer)
}

/// Deserializes a reference that [`AdoptReferences`] returned.
///
/// # Errors
///
/// Fails outside of a message, or if the message has no such reference.
pub fn deserialize_reference<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<LocalReference, D::Error> {
    context::take(
        |arrived| &arrived.references,
        "remote reference",
        deserializer,
    )
}
