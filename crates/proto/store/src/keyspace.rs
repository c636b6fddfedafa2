//! Keys and queues: what a store holds, and how much memory that takes.
//!
//! Keys and queues are two name spaces; the same name may stand in both. Small values lie in the
//! map and are copied in and out; large ones are shared, so that neither storing nor answering
//! copies them.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::meter::Meter;
use super::number;
use super::wire::LARGE_BODY;
use super::wire::fields::Body;

/// Memory of one key or queue entry besides its bytes: map node, allocation headers.
pub const ENTRY_OVERHEAD: usize = 96;

/// The data of one store.
#[derive(Debug, Default)]
pub struct Keyspace {
    map: BTreeMap<Box<[u8]>, Value>,
    queues: BTreeMap<Box<[u8]>, VecDeque<Value>>,
    meter: Meter,
    /// Memory of everything here but the values that the meter counts.
    memory: usize,
    /// Sum of the lengths of all keys of the map.
    key_bytes: usize,
}

/// A value as the store keeps it.
#[derive(Debug)]
enum Value {
    /// Small, or growing by appends.
    Plain(Vec<u8>),
    /// Large; counted by the meter.
    Shared(Bytes),
}

/// A value as it is read.
#[derive(Debug, PartialEq, Eq)]
pub enum Held<'a> {
    /// Small; to be copied.
    Small(&'a [u8]),
    /// Large; to be shared.
    Large(Bytes),
}

impl AsRef<[u8]> for Held<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

/// The value under a key is not a number that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotANumber;

impl Keyspace {
    /// An empty one that counts its large values with `meter`.
    pub fn new(meter: Meter) -> Self {
        Self {
            meter,
            ..Self::default()
        }
    }

    /// Counts the large values.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Memory of keys, queues and values.
    pub fn memory(&self) -> usize {
        self.memory + self.meter.bytes()
    }

    /// Number of keys; queues do not count.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Number of queues that are not empty.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// The lengths of all keys, added up.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// All keys, in byte order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.map.keys().map(|key| &**key)
    }

    /// Whether the key is there; queues do not count.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.map.contains_key(key)
    }

    /// Whether the key is there or a queue of that name is not empty, which is what `CHECK` and
    /// `WAIT` ask.
    pub fn is_present(&self, name: &[u8]) -> bool {
        self.map.contains_key(name) || (!self.queues.is_empty() && self.queues.contains_key(name))
    }

    /// The value of a key, to be compared or measured.
    pub fn peek(&self, key: &[u8]) -> Option<&[u8]> {
        self.map.get(key).map(Value::bytes)
    }

    /// The value of a key, to be sent or kept.
    pub fn get(&mut self, key: &[u8]) -> Option<Held<'_>> {
        let value = self.map.get_mut(key)?;
        if let Value::Plain(bytes) = value
            && bytes.len() >= LARGE_BODY
        {
            // Appends made it large; from now on it is shared, until the next append.
            self.memory -= bytes.capacity();
            let shared = self.meter.share(std::mem::take(bytes));
            *value = Value::Shared(shared);
        }
        Some(match value {
            Value::Plain(bytes) => Held::Small(bytes),
            Value::Shared(bytes) => Held::Large(bytes.clone()),
        })
    }

    /// Stores a value.
    pub fn set(&mut self, key: &[u8], body: Body<'_>) {
        let Some(value) = self.map.get_mut(key) else {
            return self.insert(key, body);
        };
        match (value, body) {
            (Value::Plain(held), Body::Inline(new))
                if held.capacity() >= new.len() && held.capacity() <= 2 * new.len() + 64 =>
            {
                held.clear();
                held.extend_from_slice(new);
            }
            (value, body) => {
                self.memory -= value.memory();
                *value = Value::from_body(body, &self.meter);
                self.memory += value.memory();
            }
        }
    }

    /// Appends to a value or creates it.
    pub fn append(&mut self, key: &[u8], body: Body<'_>) {
        let Some(value) = self.map.get_mut(key) else {
            return self.insert(key, body);
        };
        let more = body.as_ref();
        self.memory -= value.memory();
        match value {
            Value::Plain(held) => held.extend_from_slice(more),
            Value::Shared(shared) => {
                let mut held = Vec::with_capacity(shared.len() + more.len());
                held.extend_from_slice(shared);
                held.extend_from_slice(more);
                *value = Value::Plain(held);
            }
        }
        self.memory += value.memory();
    }

    /// Adds to the number under a key (absent counts as 0), keeps the sum as decimal text and
    /// returns it. Wraps around, as PyTorch does. On an error nothing is changed.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, NotANumber> {
        let Some(value) = self.map.get_mut(key) else {
            self.insert(key, Body::Inline(delta.to_string().as_bytes()));
            return Ok(delta);
        };
        let sum = number::parse(value.bytes())
            .ok_or(NotANumber)?
            .wrapping_add(delta);
        self.memory -= value.memory();
        *value = Value::Plain(sum.to_string().into_bytes());
        self.memory += value.memory();
        Ok(sum)
    }

    /// Removes a key, never a queue; tells whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let Some((key, value)) = self.map.remove_entry(key) else {
            return false;
        };
        self.memory -= ENTRY_OVERHEAD + key.len() + value.memory();
        self.key_bytes -= key.len();
        true
    }

    /// Adds to the end of a queue.
    pub fn push(&mut self, name: &[u8], body: Body<'_>) {
        let value = Value::from_body(body, &self.meter);
        self.memory += ENTRY_OVERHEAD + value.memory();
        if let Some(queue) = self.queues.get_mut(name) {
            queue.push_back(value);
        } else {
            self.memory += ENTRY_OVERHEAD + name.len();
            self.queues.insert(name.into(), VecDeque::from([value]));
        }
    }

    /// Takes the first of a queue, as bytes of its own. An emptied queue is forgotten.
    pub fn pop(&mut self, name: &[u8]) -> Option<Bytes> {
        let queue = self.queues.get_mut(name)?;
        let value = queue.pop_front()?;
        self.memory -= ENTRY_OVERHEAD + value.memory();
        if queue.is_empty() {
            self.queues.remove(name);
            self.memory -= ENTRY_OVERHEAD + name.len();
        }
        Some(match value {
            Value::Plain(bytes) => Bytes::from(bytes),
            Value::Shared(bytes) => bytes,
        })
    }

    /// The length of a queue; 0 for an unknown one.
    pub fn queue_len(&self, name: &[u8]) -> usize {
        self.queues.get(name).map_or(0, VecDeque::len)
    }

    /// Removes every key and queue whose name does not start with one of `prefixes`.
    pub fn keep_prefixes(&mut self, prefixes: &[&[u8]]) {
        let kept = |name: &[u8]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let (memory, key_bytes) = (&mut self.memory, &mut self.key_bytes);
        self.map.retain(|key, value| {
            let kept = kept(key);
            if !kept {
                *memory -= ENTRY_OVERHEAD + key.len() + value.memory();
                *key_bytes -= key.len();
            }
            kept
        });
        self.queues.retain(|name, queue| {
            let kept = kept(name);
            if !kept {
                *memory -= ENTRY_OVERHEAD + name.len();
                for value in queue {
                    *memory -= ENTRY_OVERHEAD + value.memory();
                }
            }
            kept
        });
    }

    fn insert(&mut self, key: &[u8], body: Body<'_>) {
        let value = Value::from_body(body, &self.meter);
        self.memory += ENTRY_OVERHEAD + key.len() + value.memory();
        self.key_bytes += key.len();
        self.map.insert(key.into(), value);
    }
}

impl Value {
    fn from_body(body: Body<'_>, meter: &Meter) -> Self {
        match body {
            Body::Inline(bytes) if bytes.len() < LARGE_BODY => Self::Plain(bytes.to_vec()),
            Body::Inline(bytes) => Self::Shared(meter.share(bytes.to_vec())),
            Body::Whole(bytes) => Self::Shared(bytes),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    /// Memory that the meter does not count.
    fn memory(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.capacity(),
            Self::Shared(_) => 0,
        }
    }
}
