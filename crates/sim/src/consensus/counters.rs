//! Replicated state: counters.
//!
//! Each client numbers its additions, and each addition takes effect once.

use std::collections::BTreeMap;

/// Addition of 1 for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Addition {
    pub(super) client: u64,
    /// Number of the client's operation, from 1.
    pub(super) sequence: u64,
    pub(super) key: u64,
}

impl Addition {
    pub(super) fn write(self) -> Vec<u8> {
        let fields = [self.client, self.sequence, self.key];
        fields
            .iter()
            .flat_map(|field| field.to_le_bytes())
            .collect()
    }

    /// Decodes an addition; `None` if the command is none.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [client, sequence, key] = numbers(bytes).try_into().ok()?;
        Some(Self {
            client,
            sequence,
            key,
        })
    }
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let chunks = bytes.chunks_exact(8);
    chunks
        .map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default()))
        .collect()
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counters {
    values: BTreeMap<u64, u64>,
    /// Last addition of each client, and its result.
    done: BTreeMap<u64, (u64, u64)>,
}

impl Counters {
    pub(super) fn value(&self, key: u64) -> u64 {
        self.values.get(&key).copied().unwrap_or(0)
    }

    /// Returns the value after an addition.
    ///
    /// `None` if a later addition of the client has taken effect.
    pub(super) fn apply(&mut self, addition: Addition) -> Option<u64> {
        let (last, value) = self.done.get(&addition.client).copied().unwrap_or((0, 0));
        if addition.sequence <= last {
            return (addition.sequence == last).then_some(value);
        }
        let value = self.value(addition.key) + 1;
        self.values.insert(addition.key, value);
        self.done
            .insert(addition.client, (addition.sequence, value));
        Some(value)
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let values = self.values.iter().flat_map(|(key, value)| [*key, *value]);
        let done = self.done.iter();
        let done = done.flat_map(|(client, (sequence, value))| [*client, *sequence, *value]);
        let numbers = [self.values.len() as u64]
            .into_iter()
            .chain(values)
            .chain(done);
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn read(bytes: &[u8]) -> Self {
        let numbers = numbers(bytes);
        let Some((count, rest)) = numbers.split_first() else {
            return Self::default();
        };
        let (values, done) = rest.split_at((*count as usize * 2).min(rest.len()));
        Self {
            values: values.chunks_exact(2).map(|it| (it[0], it[1])).collect(),
            done: done
                .chunks_exact(3)
                .map(|it| (it[0], (it[1], it[2])))
                .collect(),
        }
    }

    pub(super) fn digest(&self) -> u64 {
        let bytes = self.write();
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}
