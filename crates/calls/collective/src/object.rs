//! Objects of any serde type, in the compact `postcard` encoding.
//!
//! All ranks must use the same types, because the encoding does not describe its content.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{CollectiveError, Result};
use crate::group::ProcessGroup;

impl ProcessGroup {
    /// Copies one object from each rank to all ranks, in rank order.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Argument`] if this rank's object cannot be serialised;
    /// [`CollectiveError::Object`] if the object from another rank cannot be decoded because it has
    /// another type; otherwise as for [`all_gather_unequal`](Self::all_gather_unequal).
    pub fn all_gather_objects<S: Serialize + DeserializeOwned>(
        &mut self,
        own: &S,
    ) -> Result<Vec<S>> {
        let own = encode("all_gather_objects", own)?;
        let (all, parts) = self.all_gather_parts(&own)?;
        (0..self.world_size())
            .map(|rank| decode("all_gather_objects", rank, &all[parts.range(rank)]))
            .collect()
    }

    /// Copies an object from rank `root` to all ranks. Only the root uses `own`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all_gather_objects`](Self::all_gather_objects).
    pub fn broadcast_object<S: Serialize + DeserializeOwned>(
        &mut self,
        own: &S,
        root: u32,
    ) -> Result<S> {
        self.check_rank("broadcast_object from", root)?;
        let mut bytes = Vec::new();
        if self.rank() == root {
            bytes = encode("broadcast_object", own)?;
        }
        let mut length = [bytes.len() as u64];
        self.broadcast(&mut length, root)?;
        if self.rank() != root {
            (bytes, _) = self.reserve::<u8>("broadcast_object", &length)?;
        }
        self.broadcast(&mut bytes, root)?;
        decode("broadcast_object", root, &bytes)
    }

    /// Reserves memory for a number of bytes that a rank announces.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::TooLarge`] if the number exceeds
    /// [`GroupOptions::largest`](crate::GroupOptions::largest); [`CollectiveError::System`] if the
    /// system has no memory left.
    pub fn room(&mut self, length: u64, rank: u32) -> Result<Vec<u8>> {
        let mut lengths = vec![0; self.world_size() as usize];
        lengths[rank as usize] = length;
        Ok(self.reserve("broadcast_object", &lengths)?.0)
    }
}

fn encode<S: Serialize>(what: &str, object: &S) -> Result<Vec<u8>> {
    postcard::to_stdvec(object).map_err(|error| {
        CollectiveError::Argument(format!("{what}: cannot serialise the object: {error}"))
    })
}

fn decode<S: DeserializeOwned>(what: &'static str, rank: u32, bytes: &[u8]) -> Result<S> {
    postcard::from_bytes(bytes).map_err(|error| CollectiveError::Object {
        what,
        rank,
        bytes: bytes.len(),
        reason: error.to_string(),
    })
}
