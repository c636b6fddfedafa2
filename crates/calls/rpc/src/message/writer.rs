//! Encoder for bodies: postcard with a size limit.

use std::cell::Cell;

use bytes::Bytes;
use postcard::ser_flavors::Flavor;
use serde::Serialize;

use super::{BODY_LIMIT, refused};
use crate::RpcError;

/// Maximum size of a body that is copied to an allocation of its exact size.
const SCRATCH: usize = 16 << 10;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A body that is being written.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new() -> Self {
        let mut spare = SPARE.take();
        spare.clear();
        Self(spare)
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes that were written until now.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Appends a serialised value.
    ///
    /// # Errors
    ///
    /// `Serialization` if the value is too large or cannot be serialised.
    pub(super) fn write<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), RpcError> {
        postcard::serialize_with_flavor(value, Bounded(&mut self.0)).map_err(|error| {
            let what = std::any::type_name::<T>();
            refused(match error {
                postcard::Error::SerializeBufferFull => format!(
                    "{what} exceeds the limit of {BODY_LIMIT} bytes for a body: send large data as \
                     a tensor"
                ),
                postcard::Error::SerializeSeqLengthUnknown => {
                    format!("{what} has a sequence of unknown length")
                }
                _ => format!("{what} cannot be serialised"),
            })
        })
    }

    pub(super) fn finish(mut self) -> Bytes {
        if self.0.len() > SCRATCH {
            return Bytes::from(std::mem::take(&mut self.0));
        }
        Bytes::copy_from_slice(&self.0)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The buffer is also kept after an error, unless it has become large.
        if (1..=2 * SCRATCH).contains(&self.0.capacity()) {
            SPARE.set(std::mem::take(&mut self.0));
        }
    }
}

struct Bounded<'a>(&'a mut Vec<u8>);

impl Flavor for Bounded<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        if self.0.len() >= BODY_LIMIT {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() > BODY_LIMIT - self.0.len().min(BODY_LIMIT) {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
