//! Remote references within a message: their traits and their serialisation.
//!
//! This module does not know what a reference is. It transports a share in a reference, and the
//! bytes of forks.

use serde::{Deserializer, Serializer};

use super::context::{self, LocalReference};
use crate::RpcError;

/// Makes forks of the references in a message.
pub trait ForkReferences {
    /// Makes a fork of `local` for the destination.
    ///
    /// # Errors
    ///
    /// The reason why the reference cannot be passed on. The message is not sent then.
    fn fork(&mut self, local: &LocalReference) -> Result<Vec<u8>, RpcError>;
}

/// Adopts the forks in a message.
pub trait AdoptReferences {
    /// Returns the reference that the sender forked.
    ///
    /// Dropping it gives the fork back.
    ///
    /// # Errors
    ///
    /// The reason why the fork cannot be adopted. The message is not decoded then.
    fn adopt(&mut self, fork: &[u8]) -> Result<LocalReference, RpcError>;
}

/// Serialises a reference as a number. [`ForkReferences`] gets `local`.
///
/// # Errors
///
/// Outside of a message.
pub fn serialize_reference<S: Serializer>(
    local: LocalReference,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let outside = "Can not pickle rref in python pickler, rref can only be pickled when using RPC";
    context::give(|given| &mut given.references, local, outside, serializer)
}

/// Returns the reference that [`AdoptReferences`] made.
///
/// # Errors
///
/// Outside of a message, or if the message has no such reference.
pub fn deserialize_reference<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<LocalReference, D::Error> {
    context::take(
        |arrived| &arrived.references,
        "remote reference",
        deserializer,
    )
}
