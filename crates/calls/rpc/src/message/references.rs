//! Remote references within a message: their traits and their serialisation.
//!
//! This module does not interpret references. It transports local references and the bytes of
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
    /// Returns the reason why the reference cannot be passed on. The message is not sent in this
    /// case.
    fn fork(&mut self, local: &LocalReference) -> Result<Vec<u8>, RpcError>;
}

/// Code that adopts the forks in an incoming message.
pub trait AdoptReferences {
    /// Returns the reference that the sender forked.
    ///
    /// Dropping it gives the fork back.
    ///
    /// # Errors
    ///
    /// Returns the reason why the fork cannot be adopted. The message is not decoded in this case.
    fn adopt(&mut self, fork: &[u8]) -> Result<LocalReference, RpcError>;
}

/// Serialises a reference as a number. [`ForkReferences`] gets `local`.
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

/// Returns the reference that [`AdoptReferences`] created.
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
