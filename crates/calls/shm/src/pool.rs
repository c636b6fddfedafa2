//! Reusable receive buffers.
//!
//! The first access to fresh memory costs more than a copy into it, because the system clears and
//! maps every page separately. Large buffers therefore return to the pool when their last reader
//! has dropped them. New buffers get all their pages in one call, and large pages if the system has
//! them.
//!
//! A peer may never send as many bytes as it announced. The buffer for such bytes has addresses for
//! all of them from the beginning. Its memory [grows](PooledBuffer::grow) with the bytes that
//! arrive, unless a large buffer is reused.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use memmap2::{Advice, MmapMut, MmapOptions};
use rdzv_lock::Mutex;

/// Minimum size of a pooled buffer; the allocator itself keeps shorter ones.
const SMALLEST: usize = 64 << 10;

/// Minimum size for large pages.
const HUGE: usize = 2 << 20;

/// Maximum number of bytes that a pool keeps for later, without buffers in use.
const KEEP: usize = 256 << 20;

/// Source of buffers. Clones are handles to the same pool.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// [`KEEP`], except in tests.
    keep: usize,
    kept: Mutex<Kept>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            keep: KEEP,
            kept: Mutex::default(),
        }
    }
}

/// Unused memory, with the most recently used at the back.
#[derive(Debug, Default)]
struct Kept {
    free: VecDeque<MmapMut>,
    bytes: usize,
    /// Number of clears. Memory taken before the latest clear is not kept.
    cleared: u64,
}

impl Pool {
    /// Returns a buffer of this length, which may have content from earlier uses.
    ///
    /// As with any allocation, the process ends if the system has no memory left.
    pub fn take(&self, length: usize) -> PooledBuffer {
        self.begin(length, length)
    }

    /// Returns a buffer that may grow to `length`, for a peer that may send less.
    ///
    /// The buffer starts with `at_first` bytes. It starts with `length` bytes if that is less than
    /// 64 KiB, or if memory is reused.
    pub fn begin(&self, length: usize, at_first: usize) -> PooledBuffer {
        let buffer = |memory, length, populated, cleared| PooledBuffer {
            memory,
            length,
            populated,
            cleared,
            pool: Arc::clone(&self.0),
        };
        if length < SMALLEST {
            return buffer(Memory::Allocated(vec![0; length]), length, 0, 0);
        }
        let capacity = self.0.capacity(length);
        let (kept, cleared) = {
            let mut kept = self.0.kept.lock();
            (kept.take(capacity), kept.cleared)
        };
        if let Some(map) = kept {
            let populated = map.len();
            return buffer(Memory::Mapped(map), length, populated, cleared);
        }
        let at_first = at_first.min(length);
        let populated = if at_first < length {
            at_first
        } else {
            capacity
        };
        let memory = match self.0.map(capacity, populated) {
            Some(map) => Memory::Mapped(map),
            None => Memory::Allocated(vec![0; at_first]),
        };
        buffer(memory, at_first, populated, cleared)
    }

    /// Returns the number of unused bytes in the pool.
    pub fn kept(&self) -> usize {
        self.0.kept.lock().bytes
    }

    /// Returns unused memory to the system now, and memory in use after its use.
    pub fn clear(&self) {
        let mut kept = self.0.kept.lock();
        kept.cleared += 1;
        kept.bytes = 0;
        let all = std::mem::take(&mut kept.free);
        drop(kept);
        drop(all);
    }
}

impl Shared {
    /// Maps memory with pages for its first bytes; `None` if no mappings are left.
    fn map(&self, capacity: usize, populated: usize) -> Option<MmapMut> {
        let mut options = MmapOptions::new();
        let map = options.len(capacity).no_reserve_swap().map_anon().ok()?;
        // Without the advice, pages are mapped one by one, which is slower. The first byte of a
        // large page would bring the whole page, so memory that grows starts with small pages.
        let small = if populated < capacity { HUGE } else { 0 };
        if capacity > small.max(HUGE - 1) {
            let _ = map.advise_range(Advice::HugePage, small, capacity - small);
        }
        populate(&map, 0, populated);
        Some(map)
    }

    /// Returns the capacity for a buffer: its [`class`] if the pool can keep it.
    fn capacity(&self, length: usize) -> usize {
        let class = class(length);
        if class > self.keep {
            length.next_multiple_of(HUGE)
        } else {
            class
        }
    }

    fn give_back(&self, map: MmapMut, cleared: u64) {
        // Unmapping takes long, so it is done outside of the lock.
        let mut surplus = Vec::new();
        let mut kept = self.kept.lock();
        if kept.cleared != cleared {
            drop(kept);
            return drop(map);
        }
        kept.bytes += map.len();
        kept.free.push_back(map);
        while kept.bytes > self.keep {
            let Some(oldest) = kept.free.pop_front() else {
                break;
            };
            kept.bytes -= oldest.len();
            surplus.push(oldest);
        }
        drop(kept);
    }
}

/// Makes the system map the pages of this range.
fn populate(map: &MmapMut, from: usize, to: usize) {
    // Without this advice, pages are mapped one by one.
    let _ = map.advise_range(Advice::PopulateWrite, from, to - from);
}

impl Kept {
    /// Returns the most recently used memory of one to two times this capacity.
    fn take(&mut self, capacity: usize) -> Option<MmapMut> {
        let fits = |map: &MmapMut| (capacity..=capacity * 2).contains(&map.len());
        let at = self.free.iter().rposition(fits)?;
        let map = self.free.remove(at)?;
        self.bytes -= map.len();
        Some(map)
    }
}

/// Returns the capacity for a length: a power of two, or 5/4, 6/4 or 7/4 of it.
fn class(length: usize) -> usize {
    let below = (length.max(SMALLEST) / 2 + 1).next_power_of_two();
    let quarter = (below / 4).max(SMALLEST / 4);
    length.max(SMALLEST).next_multiple_of(quarter)
}

/// Buffer of a pool.
///
/// Dropping the buffer, or the bytes made from it, returns memory of at least 64 KiB to the pool.
/// Memory without its planned length goes back to the system.
#[derive(Debug)]
pub struct PooledBuffer {
    memory: Memory,
    length: usize,
    /// Number of bytes of the mapping that have pages.
    populated: usize,
    /// Number of clears of the pool when the buffer was taken.
    cleared: u64,
    pool: Arc<Shared>,
}

#[derive(Debug)]
enum Memory {
    Allocated(Vec<u8>),
    Mapped(MmapMut),
}

impl PooledBuffer {
    /// Grows the buffer to this length, at most its planned length.
    ///
    /// The content stays. `false` if the allocator has no memory left; the buffer then stays
    /// unchanged.
    #[must_use]
    pub fn grow(&mut self, length: usize) -> bool {
        match &mut self.memory {
            Memory::Allocated(bytes) => {
                let more = length.saturating_sub(bytes.len());
                if bytes.try_reserve_exact(more).is_err() {
                    return false;
                }
                bytes.resize(length, 0);
            }
            Memory::Mapped(map) if self.populated < length => {
                let is_last = self.pool.capacity(length) == map.len();
                let to = if is_last { map.len() } else { length };
                populate(map, self.populated, to);
                self.populated = to;
            }
            Memory::Mapped(_) => {}
        }
        self.length = length;
        true
    }

    /// Converts the buffer to bytes, which never change.
    pub fn freeze(mut self) -> Bytes {
        match &mut self.memory {
            // The pool gets nothing back.
            Memory::Allocated(bytes) => std::mem::take(bytes).into(),
            Memory::Mapped(map) => {
                let start = map.as_ptr().addr();
                let frozen = Arc::new(self);
                FROZEN.lock().insert(start, Arc::downgrade(&frozen));
                Bytes::from_owner(Frozen(frozen))
            }
        }
    }

    /// Returns the buffer of these bytes, if this is their only clone.
    ///
    /// # Errors
    ///
    /// Returns the bytes if there are other clones, or if they are not the whole content of a
    /// buffer of at least 64 KiB.
    pub fn thaw(bytes: Bytes) -> Result<Self, Bytes> {
        let found = FROZEN.lock().get(&bytes.as_ptr().addr()).cloned();
        let Some(frozen) = found.and_then(|weak| weak.upgrade()) else {
            return Err(bytes);
        };
        if frozen.as_ref().as_ref().len() != bytes.len() {
            return Err(bytes);
        }
        // The last clone releases the bytes' share of the buffer.
        drop(bytes);
        Arc::try_unwrap(frozen).map_err(|frozen| Bytes::from_owner(Frozen(frozen)))
    }
}

struct Frozen(Arc<PooledBuffer>);

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().as_ref()
    }
}

/// Frozen buffers, by the address of the first byte.
static FROZEN: Mutex<BTreeMap<usize, Weak<PooledBuffer>>> = Mutex::new(BTreeMap::new());

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            Memory::Allocated(bytes) => bytes,
            Memory::Mapped(map) => &map[..self.length],
        }
    }
}

impl AsMut<[u8]> for PooledBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Allocated(bytes) => bytes,
            Memory::Mapped(map) => &mut map[..self.length],
        }
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::Allocated(Vec::new()));
        if let Memory::Mapped(map) = &memory {
            // The entry is removed before another buffer gets the memory.
            let was = FROZEN.lock().remove(&map.as_ptr().addr());
            drop(was);
        }
        // A buffer that did not reach its full length is not useful to the next user.
        if let Memory::Mapped(map) = memory
            && self.populated == map.len()
        {
            self.pool.give_back(map, self.cleared);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEBI: usize = 1 << 20;

    #[test]
    fn bytes_that_one_has_alone_become_their_buffer_again() {
        let pool = Pool::default();
        let mut buffer = pool.take(3 * MEBI + 5);
        buffer.as_mut().fill(9);
        let bytes = buffer.freeze();
        let (address, other) = (bytes.as_ptr(), bytes.clone());
        let bytes = PooledBuffer::thaw(bytes).expect_err("another clone exists");
        assert_eq!((bytes.as_ptr(), bytes.len()), (address, 3 * MEBI + 5));
        drop(other);
        let part = PooledBuffer::thaw(bytes.slice(1..)).expect_err("a part of them");
        assert_eq!(pool.kept(), 0);
        drop((part, bytes));
        let bytes = pool.take(3 * MEBI + 5).freeze();
        assert_eq!(bytes.as_ptr(), address, "the same memory was returned");
        let mut buffer = PooledBuffer::thaw(bytes).expect("no other clone exists");
        assert!(buffer.as_ref().iter().all(|byte| *byte == 9));
        buffer.as_mut()[0] = 8;
        let bytes = buffer.freeze();
        assert_eq!((bytes.as_ptr(), bytes[0]), (address, 8));
        drop(bytes);
        assert_eq!(pool.kept(), 3 * MEBI + MEBI / 2);
        let few = pool.take(100).freeze();
        assert!(PooledBuffer::thaw(few).is_err(), "not of a pool");
    }

    #[test]
    fn memory_comes_back_when_the_last_clone_is_dropped() {
        let pool = Pool::default();
        let mut buffer = pool.take(3 * MEBI + 5);
        buffer.as_mut().fill(9);
        let address = buffer.as_ref().as_ptr();
        let bytes = buffer.freeze();
        let part = bytes.slice(MEBI..);
        drop(bytes);
        assert_eq!(pool.kept(), 0);
        assert!(part.iter().all(|byte| *byte == 9) && part.len() == 2 * MEBI + 5);
        drop(part);
        assert_eq!(pool.kept(), 3 * MEBI + MEBI / 2);
        assert_eq!(pool.take(3 * MEBI).as_ref().as_ptr(), address);
    }

    #[test]
    fn no_more_is_kept_than_was_said_and_the_oldest_goes_first() {
        let pool = Pool(Arc::new(Shared {
            keep: 3 * MEBI,
            ..Shared::default()
        }));
        let buffers: Vec<_> = (0..5).map(|_| pool.take(MEBI)).collect();
        let last = buffers[4].as_ref().as_ptr();
        drop(buffers);
        assert_eq!(pool.kept(), 3 * MEBI);
        assert_eq!(pool.take(MEBI).as_ref().as_ptr(), last);
        drop(pool.take(4 * MEBI));
        assert_eq!(pool.kept(), 0, "too large a buffer evicts all");
        drop(pool.take(MEBI));
        pool.clear();
        assert_eq!(pool.kept(), 0);
    }

    #[test]
    fn a_large_buffer_is_not_wasted_on_a_small_message() {
        let pool = Pool::default();
        drop(pool.take(16 * MEBI));
        drop(pool.take(MEBI));
        assert_eq!(pool.kept(), 17 * MEBI);
    }

    #[test]
    fn small_buffers_are_not_kept() {
        let pool = Pool::default();
        for length in [0, 1, 1000] {
            let mut buffer = pool.take(length);
            buffer.as_mut().fill(1);
            assert_eq!(buffer.freeze(), vec![1; length]);
        }
        assert_eq!(pool.kept(), 0);
    }

    #[test]
    fn a_buffer_grows_with_what_is_in_it() {
        let pool = Pool::default();
        let mut buffer = pool.begin(40 * MEBI, MEBI);
        assert_eq!(buffer.as_ref().len(), MEBI);
        buffer.as_mut().fill(9);
        for length in [2 * MEBI, 7 * MEBI + 1, 40 * MEBI] {
            assert!(buffer.grow(length));
            assert_eq!(buffer.as_ref().len(), length);
            assert_eq!(buffer.as_ref()[MEBI - 1], 9);
            assert_eq!(buffer.as_ref()[length - 1], 0);
        }
        drop(buffer);
        assert_eq!(pool.kept(), 40 * MEBI);
        // Existing memory is used completely.
        assert_eq!(pool.begin(40 * MEBI, MEBI).as_ref().len(), 40 * MEBI);
        assert_eq!(pool.begin(1000, 10).as_ref(), [0; 1000]);
    }

    #[test]
    fn a_buffer_that_did_not_become_as_long_as_announced_is_not_kept() {
        let pool = Pool::default();
        let mut buffer = pool.begin(40 * MEBI, MEBI);
        assert!(buffer.grow(20 * MEBI));
        drop(buffer);
        assert_eq!(pool.kept(), 0);
    }

    #[test]
    fn what_is_in_use_when_all_is_given_back_is_not_kept_either() {
        let pool = Pool::default();
        let used = pool.take(MEBI);
        pool.clear();
        drop(used);
        assert_eq!(pool.kept(), 0);
        drop(pool.take(MEBI));
        assert_eq!(pool.kept(), MEBI);
    }

    proptest! {
        #[test]
        fn a_class_wastes_at_most_a_quarter(length in SMALLEST..4_usize << 30) {
            let class = class(length);
            prop_assert!(class >= length && class.is_multiple_of(4096));
            prop_assert!(class - length <= length / 4 + SMALLEST / 4, "{} for {}", class, length);
        }
    }
}
