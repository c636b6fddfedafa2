//! Counting the memory of large values for as long as anybody holds them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Number of bytes of large values alive: in the store, in requests in progress, in replies that
/// slow readers have not taken yet. A value that is held in several places counts once.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<AtomicUsize>);

impl Meter {
    /// Makes a value shareable and counts it until its last holder is gone.
    pub fn share(&self, body: Vec<u8>) -> Bytes {
        self.0.fetch_add(body.capacity(), Ordering::Relaxed);
        Bytes::from_owner(Metered {
            body,
            meter: self.clone(),
        })
    }

    /// The bytes alive now.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

struct Metered {
    body: Vec<u8>,
    meter: Meter,
}

impl AsRef<[u8]> for Metered {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.meter
            .0
            .fetch_sub(self.body.capacity(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_once_and_until_its_last_holder_is_gone() {
        let meter = Meter::default();
        let first = meter.share(Vec::with_capacity(100));
        let second = first.clone();
        assert_eq!(meter.bytes(), 100);
        drop(first);
        assert_eq!(meter.bytes(), 100);
        drop(second);
        assert_eq!(meter.bytes(), 0);
    }
}
