//! Remote references within a message: who deals with them, and how they serialise themselves.
//!
//! This module does not know what a reference is. It carries a share in one, and the bytes of
//! forks.

use serde::{Deserializer, Serializer};

use super::context::{self, LocalReference};
use crate::RpcError;

/// Makes forks of the references that a message takes along.
pub trait ForkReferences {
    /// Makes a fork of `local` for the destination.
    ///
    /// # Errors
    ///
    /// Why it cannot be passed on; the message is not sent then.
    fn fork(&mut self, local: &LocalReference) -> Result<Vec<u8>, RpcError>;
}

/// Takes in the forks that come with a message.
pub trait AdoptReferences {
    /// The reference that was forked by the sender. Dropping it gives the fork back.
    ///
    /// # Errors
    ///
    /// Why it cannot be taken; the message is not decoded then.
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

/// Returns what [`AdoptReferences`] made of the reference.
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
