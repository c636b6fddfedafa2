//! Keys and queues: the data of a store, and the memory that they occupy.
//!
//! Keys and queues are two name spaces, so a key and a queue may have the same name. Small values
//! are kept in the map and are copied in and out. Large values are shared, so that an answer does
//! not copy them. Storing copies a large value only if its whole request was read in one piece.
//! Each key counts for the owner that stored its value last (see [`meter`](super::meter)).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::meter::{Meter, Shared};
use super::number;
use super::wire::LARGE_BODY;
use super::wire::fields::Body;

/// Memory of one key or queue entry besides its bytes.
///
/// This covers the map node and the allocation headers.
pub const ENTRY_OVERHEAD: usize = 96;

/// The data of one store.
#[derive(Debug, Default)]
pub struct Keyspace {
    map: BTreeMap<Box<[u8]>, Entry>,
    queues: BTreeMap<Box<[u8]>, Queue>,
    /// Meter of the owner of all values that are stored from now on.
    owner: Meter,
    meter: Meter,
}

/// A key's value, and the meter of its owner.
#[derive(Debug)]
struct Entry {
    value: StoredValue,
    owner: Meter,
}

/// A queue, and the meter of the owner of its name.
#[derive(Debug)]
struct Queue {
    entries: VecDeque<Entry>,
    owner: Meter,
}

/// A value as the store keeps it.
#[derive(Debug)]
pub enum StoredValue {
    /// A small value, or one that grows by appends.
    Plain(Vec<u8>),
    /// A large value, which the meter counts until its last holder drops it.
    Shared(Shared),
}

impl AsRef<[u8]> for StoredValue {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Error: the value of a key is not a number that fits into an `i64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotANumber;

impl Keyspace {
    /// Creates an empty keyspace that counts everything with `meter`.
    pub fn new(meter: Meter) -> Self {
        Self {
            owner: meter.clone(),
            meter,
            ..Self::default()
        }
    }

    /// Sets the meter of the owner of all values that are stored from now on.
    ///
    /// The meter must be the store's meter or a part of it.
    #[inline]
    pub fn store_for(&mut self, owner: &Meter) {
        if !self.owner.is(owner) {
            self.owner = owner.clone();
        }
    }

    /// Returns the meter of the owner of the values that are stored from now on.
    pub fn owner(&self) -> &Meter {
        &self.owner
    }

    /// Returns all memory that the store's meter counts.
    #[inline]
    pub fn memory(&self) -> usize {
        self.meter.bytes()
    }

    /// Returns the number of keys, without queues.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// `true` if there is no key.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the number of queues that are not empty.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Returns the keys after `key` in byte order, or all keys for `None`.
    pub fn keys_after(&self, key: Option<&[u8]>) -> impl Iterator<Item = &[u8]> {
        let first = key.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.map.range::<[u8], _>((first, Bound::Unbounded));
        range.map(|(key, _)| &**key)
    }

    /// `true` if the key exists; queues do not count.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.map.contains_key(key)
    }

    /// `true` if a key or a queue that is not empty has this name.
    pub fn is_present(&self, name: &[u8]) -> bool {
        self.map.contains_key(name) || self.queues.contains_key(name)
    }

    /// Returns the value of a key.
    pub fn peek(&self, key: &[u8]) -> Option<&[u8]> {
        self.map.get(key).map(|entry| entry.value.as_ref())
    }

    /// Returns the length of the value of a key; 0 if the key is absent.
    pub fn length(&self, key: &[u8]) -> usize {
        self.peek(key).map_or(0, <[u8]>::len)
    }

    /// Returns the value of a key, to be sent or kept.
    pub fn get(&mut self, key: &[u8]) -> Option<Body<'_>> {
        let entry = self.map.get_mut(key)?;
        if let StoredValue::Plain(bytes) = &mut entry.value
            && bytes.len() >= LARGE_BODY
        {
            // Appends made the value large. From now on the value is shared, until the next append.
            entry.owner.shrink(bytes.capacity());
            let shared = entry.owner.share(std::mem::take(bytes));
            entry.value = StoredValue::Shared(shared);
        }
        Some(match &entry.value {
            StoredValue::Plain(bytes) => Body::Inline(bytes),
            StoredValue::Shared(bytes) => Body::Whole(bytes.clone()),
        })
    }

    /// Stores a value.
    pub fn set(&mut self, key: &[u8], body: Body<'_>) {
        let Some(entry) = self.map.get_mut(key) else {
            return self.insert(key, body);
        };
        entry.change_owner(key, &self.owner);
        let before = entry.value.memory();
        match (&mut entry.value, body) {
            (StoredValue::Plain(held), Body::Inline(new))
                if held.capacity() >= new.len() && held.capacity() <= 2 * new.len() + 64 =>
            {
                held.clear();
                held.extend_from_slice(new);
            }
            (value, body) => *value = StoredValue::from_body(body, &self.owner),
        }
        entry.owner.resize(before, entry.value.memory());
    }

    /// Appends to a value or creates it; returns the number of old bytes copied.
    ///
    /// A large value is copied if another holder shares it, for example an unsent reply.
    pub fn append(&mut self, key: &[u8], body: Body<'_>) -> usize {
        let Some(entry) = self.map.get_mut(key) else {
            self.insert(key, body);
            return 0;
        };
        let mut copied = 0;
        let more = body.as_ref();
        entry.change_owner(key, &self.owner);
        let before = entry.value.memory();
        match std::mem::replace(&mut entry.value, StoredValue::Plain(Vec::new())) {
            StoredValue::Plain(mut held) => {
                held.extend_from_slice(more);
                entry.value = StoredValue::Plain(held);
            }
            StoredValue::Shared(shared) => {
                let mut held = shared.into_sole().unwrap_or_else(|shared| {
                    copied = shared.len();
                    shared.to_vec()
                });
                held.extend_from_slice(more);
                entry.value = StoredValue::Plain(held);
            }
        }
        entry.owner.resize(before, entry.value.memory());
        copied
    }

    /// Adds to the number under a key; stores the sum as text and returns it.
    ///
    /// An absent key counts as 0. The sum wraps around, as in PyTorch. On an error nothing is
    /// changed.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, NotANumber> {
        let Some(entry) = self.map.get_mut(key) else {
            self.insert(key, Body::Inline(delta.to_string().as_bytes()));
            return Ok(delta);
        };
        let sum = number::parse(entry.value.as_ref())
            .ok_or(NotANumber)?
            .wrapping_add(delta);
        entry.change_owner(key, &self.owner);
        let before = entry.value.memory();
        entry.value = StoredValue::Plain(sum.to_string().into_bytes());
        entry.owner.resize(before, entry.value.memory());
        Ok(sum)
    }

    /// Removes a key, but never a queue; returns `true` if the key existed.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let removed = self.map.remove(key);
        removed.inspect(|entry| entry.forget(key)).is_some()
    }

    /// Adds to the end of a queue.
    pub fn push(&mut self, name: &[u8], body: Body<'_>) {
        let value = StoredValue::from_body(body, &self.owner);
        self.owner.grow(ENTRY_OVERHEAD + value.memory());
        let owner = self.owner.clone();
        let entry = Entry { value, owner };
        if let Some(queue) = self.queues.get_mut(name) {
            queue.entries.push_back(entry);
            return;
        }
        let owner = self.owner.clone();
        owner.add_key(ENTRY_OVERHEAD + name.len());
        let entries = VecDeque::from([entry]);
        self.queues.insert(name.into(), Queue { entries, owner });
    }

    /// Removes the first entry of a queue and returns it.
    ///
    /// An emptied queue is removed.
    pub fn pop(&mut self, name: &[u8]) -> Option<StoredValue> {
        let queue = self.queues.get_mut(name)?;
        let Entry { value, owner } = queue.entries.pop_front()?;
        owner.shrink(ENTRY_OVERHEAD + value.memory());
        if queue.entries.is_empty()
            && let Some(queue) = self.queues.remove(name)
        {
            queue.owner.remove_key(ENTRY_OVERHEAD + name.len());
        }
        Some(value)
    }

    /// Returns the length of a queue; 0 if it does not exist.
    pub fn queue_len(&self, name: &[u8]) -> usize {
        self.queues.get(name).map_or(0, |queue| queue.entries.len())
    }

    /// Removes every key and queue whose name starts with none of `prefixes`.
    pub fn keep_prefixes(&mut self, prefixes: &[&[u8]]) {
        let kept = |name: &[u8]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        self.map.retain(|key, entry| {
            let kept = kept(key);
            if !kept {
                entry.forget(key);
            }
            kept
        });
        self.queues.retain(|name, queue| {
            let kept = kept(name);
            if !kept {
                queue.owner.remove_key(ENTRY_OVERHEAD + name.len());
                for Entry { value, owner } in &queue.entries {
                    owner.shrink(ENTRY_OVERHEAD + value.memory());
                }
            }
            kept
        });
    }

    fn insert(&mut self, key: &[u8], body: Body<'_>) {
        let owner = self.owner.clone();
        let value = StoredValue::from_body(body, &owner);
        owner.add_key(ENTRY_OVERHEAD + key.len() + value.memory());
        self.map.insert(key.into(), Entry { value, owner });
    }
}

impl Entry {
    #[inline]
    fn change_owner(&mut self, key: &[u8], owner: &Meter) {
        if !self.owner.is(owner) {
            self.forget(key);
            owner.add_key(ENTRY_OVERHEAD + key.len() + self.value.memory());
            self.owner = owner.clone();
        }
    }

    /// Subtracts the key from its owner's meter.
    fn forget(&self, key: &[u8]) {
        self.owner
            .remove_key(ENTRY_OVERHEAD + key.len() + self.value.memory());
    }
}

impl StoredValue {
    fn from_body(body: Body<'_>, meter: &Meter) -> Self {
        match body {
            Body::Inline(bytes) if bytes.len() < LARGE_BODY => Self::Plain(bytes.to_vec()),
            Body::Inline(bytes) => Self::Shared(meter.share(bytes.to_vec())),
            Body::Whole(bytes) => Self::Shared(bytes),
        }
    }

    /// Returns the memory of the value; 0 for a shared value, which counts itself.
    fn memory(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.capacity(),
            Self::Shared(_) => 0,
        }
    }
}
