//! Remote references within a message: who deals with them, and how they serialise themselves.
//!
//! This module does not know what a reference is. It carries the bytes that describe one.

use serde::{Deserialize, Deserializer, Serializer, de, ser};

use super::context::{self, Adopted};
use crate::RpcError;

/// Makes forks of the references that a message takes along.
pub trait ForkReferences {
    /// A fork for the destination of the reference that calls itself `local` here.
    ///
    /// # Errors
    ///
    /// Why it cannot be passed on; the message is not sent then.
    fn fork(&mut self, local: &[u8]) -> Result<Vec<u8>, RpcError>;
}

/// Takes in the forks that come with a message.
pub trait AdoptReferences {
    /// The reference that was forked by the sender. Dropping it gives the fork back.
    ///
    /// # Errors
    ///
    /// Why it cannot be taken; the message is not decoded then.
    fn adopt(&mut self, fork: &[u8]) -> Result<Adopted, RpcError>;
}

/// How a reference serialises itself: as a number, while [`ForkReferences`] gets `local`.
///
/// # Errors
///
/// Outside of a message.
pub fn serialize_reference<S: Serializer>(local: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let number = context::give_reference(local).map_err(ser::Error::custom)?;
    serializer.serialize_u32(number)
}

/// How a reference is made again: what [`AdoptReferences`] made of it.
///
/// # Errors
///
/// Outside of a message, or if the message has no such reference.
pub fn deserialize_reference<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Adopted, D::Error> {
    let number = u32::deserialize(deserializer)?;
    context::take_reference(number).map_err(de::Error::custom)
}
