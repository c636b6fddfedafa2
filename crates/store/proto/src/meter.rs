//! Counting memory and keys per owner.
//!
//! Meters form a tree. A byte or key that a meter counts also counts in all meters above it:
//!
//! ```text
//!   store ─┬─ address ─┬─ connection      its values, waits and buffers
//!          │           └─ connection
//!          └─ address ─── connection
//! ```
//!
//! A value counts for the connection that wrote it until its last holder drops it, even after that
//! connection was closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of bytes and keys of one owner.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    bytes: AtomicUsize,
    keys: AtomicUsize,
    /// Parent meter, which also counts everything that this meter counts.
    whole: Option<Meter>,
}

impl Meter {
    /// Creates a meter whose counts are included in this meter.
    pub fn part(&self) -> Self {
        Self(Arc::new(Count {
            whole: Some(self.clone()),
            ..Count::default()
        }))
    }

    /// Makes a value shareable; the value counts until its last holder drops it.
    pub fn share(&self, body: Vec<u8>) -> Shared {
        self.grow(body.capacity());
        Shared(Arc::new(Metered {
            body,
            meter: self.clone(),
        }))
    }

    /// Returns the bytes held now.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Relaxed)
    }

    /// Returns the number of keys and queues held now.
    #[inline]
    pub fn keys(&self) -> usize {
        self.0.keys.load(Relaxed)
    }

    /// Counts more bytes.
    #[inline]
    pub fn grow(&self, bytes: usize) {
        self.each(|count| {
            count.bytes.fetch_add(bytes, Relaxed);
        });
    }

    /// Counts fewer bytes.
    #[inline]
    pub fn shrink(&self, bytes: usize) {
        self.each(|count| {
            count.bytes.fetch_sub(bytes, Relaxed);
        });
    }

    /// Counts `to` bytes instead of `from` bytes.
    #[inline]
    pub fn resize(&self, from: usize, to: usize) {
        match to.cmp(&from) {
            std::cmp::Ordering::Greater => self.grow(to - from),
            std::cmp::Ordering::Less => self.shrink(from - to),
            std::cmp::Ordering::Equal => {}
        }
    }

    /// Counts one more key of this many bytes.
    #[inline]
    pub fn add_key(&self, bytes: usize) {
        self.each(|count| {
            count.bytes.fetch_add(bytes, Relaxed);
            count.keys.fetch_add(1, Relaxed);
        });
    }

    /// Subtracts one key of this many bytes.
    #[inline]
    pub fn remove_key(&self, bytes: usize) {
        self.each(|count| {
            count.bytes.fetch_sub(bytes, Relaxed);
            count.keys.fetch_sub(1, Relaxed);
        });
    }

    /// `true` if `other` is the same meter.
    #[inline]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// `true` if a connection, a key, a value or a part holds this meter, too.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    #[inline]
    fn each(&self, change: impl Fn(&Count)) {
        let mut meter = Some(self);
        while let Some(Self(count)) = meter {
            change(count);
            meter = count.whole.as_ref();
        }
    }
}

/// A large value that several holders can share, and that counts once.
#[derive(Debug, Clone)]
pub struct Shared(Arc<Metered>);

#[derive(Debug)]
struct Metered {
    body: Vec<u8>,
    meter: Meter,
}

impl Shared {
    /// Returns the bytes if they have a single holder; they then no longer count.
    pub fn into_sole(self) -> Result<Vec<u8>, Self> {
        let mut metered = Arc::try_unwrap(self.0).map_err(Self)?;
        metered.meter.shrink(metered.body.capacity());
        Ok(std::mem::take(&mut metered.body))
    }
}

impl std::ops::Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.body
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Shared {}

impl Drop for Metered {
    fn drop(&mut self) {
        self.meter.shrink(self.body.capacity());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_once_while_it_has_a_holder() {
        let meter = Meter::default();
        let first = meter.share(Vec::with_capacity(100));
        let second = first.clone();
        assert_eq!(meter.bytes(), 100);
        drop(first);
        assert_eq!(meter.bytes(), 100);
        drop(second);
        assert_eq!(meter.bytes(), 0);
    }

    #[test]
    fn a_part_counts_in_the_whole_and_not_in_its_sibling() {
        let whole = Meter::default();
        let (one, two) = (whole.part(), whole.part());
        one.add_key(10);
        let value = two.share(Vec::with_capacity(100));
        assert_eq!((one.bytes(), two.bytes(), whole.bytes()), (10, 100, 110));
        assert_eq!((one.keys(), two.keys(), whole.keys()), (1, 0, 1));
        assert!(two.is_in_use());
        one.remove_key(10);
        assert_eq!(value.into_sole().unwrap().capacity(), 100);
        assert_eq!((whole.bytes(), whole.keys()), (0, 0));
        assert!(!two.is_in_use());
    }

    #[test]
    fn a_value_with_several_holders_is_not_taken_from_them() {
        let meter = Meter::default();
        let first = meter.share(vec![1; 100]);
        let second = first.clone();
        let first = first.into_sole().unwrap_err();
        assert_eq!((meter.bytes(), &*first), (100, &*second));
    }
}
