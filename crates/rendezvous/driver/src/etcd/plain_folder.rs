//! A folder through the v3 API: values as they are, under keys as they are.
//!
//! Beside a value that is written on a condition stands which operation that was, so that one whose
//! answer was lost, and which is therefore sent again, is not done twice.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rdzv_store::StoreError;
use serde_json::{Value, json};

use super::failure::Cause;
use super::http::Http;
use super::leases::Leases;
use super::options::EtcdOptions;
use super::run_watch::next_answer;
use super::store::{ConditionalWrite, EtcdStore, Folder, Held, Swap};
use super::v3::V3;
use super::watch::{End, SILENCE, away};
use super::wire::{Int, count, read, text, unchanged_since, write};
use crate::RendezvousError;

/// etcd takes 128 operations in one transaction.
const OPERATIONS: usize = 100;

/// A folder of keys with leases.
pub(super) struct PlainFolder {
    v3: V3,
    leases: Arc<Leases>,
    /// Ends with a slash.
    folder: String,
    /// Where the last operation of this handle is noted.
    applied: String,
    /// The number of that operation. Locked during an operation, as there is one note only.
    operation: Mutex<u64>,
}

impl EtcdStore {
    /// The keys in a folder of that name on that server, which need not be up yet; names are joined
    /// to the options' prefix with a slash.
    pub fn open(options: &EtcdOptions, folder: &str) -> Result<Self, RendezvousError> {
        let v3 = V3::new(Http::new(options)?);
        let leases = Leases::new(v3.clone(), options.lease_time_to_live)?;
        let prefix = options.prefix.trim_end_matches('/');
        let folder = format!("{prefix}/{folder}/");
        Ok(Self::over(PlainFolder::new(&v3, Arc::new(leases), &folder)))
    }
}

impl PlainFolder {
    /// The keys in `folder`, which ends with a slash, through connections of its own.
    pub(super) fn new(v3: &V3, leases: Arc<Leases>, folder: &str) -> Self {
        Self {
            v3: v3.separate(),
            leases,
            folder: folder.to_owned(),
            applied: format!("{folder}applied/{:016x}", fastrand::u64(..)),
            operation: Mutex::new(0),
        }
    }

    fn full(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.name()).into_bytes()
    }
}

impl Folder for PlainFolder {
    fn http(&self) -> &Http {
        self.v3.http()
    }

    fn name(&self) -> String {
        format!("{}keys/", self.folder)
    }

    fn separate(&self) -> Box<dyn Folder> {
        Box::new(Self::new(&self.v3, Arc::clone(&self.leases), &self.folder))
    }

    fn batch(&self) -> usize {
        usize::MAX
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn held(&self, _operation: &'static str, key: &str) -> Result<Option<Held>, StoreError> {
        Ok(self.v3.read(&self.full(key))?.0)
    }

    fn values(&self, keys: &[&str]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let mut values = Vec::with_capacity(keys.len());
        for part in keys.chunks(OPERATIONS) {
            let reads: Vec<Value> = part.iter().map(|key| read(&self.full(key))).collect();
            let first = self.full(part[0]);
            let found = self.v3.transact("get", &first, &[], &reads, &[])?;
            values.extend(found.all_held().into_iter().map(|held| Some(held?.value)));
        }
        Ok(values)
    }

    fn missing<'a>(
        &self,
        _operation: &'static str,
        keys: &[&'a str],
    ) -> Result<(Vec<&'a str>, i64), StoreError> {
        let mut missing = Vec::new();
        let mut revision = i64::MAX;
        for part in keys.chunks(OPERATIONS) {
            let counts: Vec<Value> = part.iter().map(|key| count(&self.full(key))).collect();
            let first = self.full(part[0]);
            let answer = self.v3.transact("check", &first, &[], &counts, &[])?;
            revision = revision.min(answer.header.revision.0);
            for (at, key) in part.iter().enumerate() {
                let response = answer.responses.get(at);
                let range = response.and_then(|found| found.response_range.as_ref());
                if range.is_none_or(|range| range.count.0 == 0) {
                    missing.push(*key);
                }
            }
        }
        Ok((missing, revision))
    }

    fn wait_for_write(&self, key: &str, revision: i64, limit: Duration) -> Result<(), Cause> {
        let creation = json!({
            "key": text(&self.full(key)),
            "start_revision": Int(revision.saturating_add(1)),
            "filters": ["NODELETE"]
        });
        let limit = Some(limit.min(SILENCE));
        let mut lines = self.v3.watch(&[creation], SILENCE, limit)?;
        loop {
            match next_answer(&mut lines) {
                Ok(answer) if answer.canceled || !answer.events.is_empty() => return Ok(()),
                Ok(answer) if answer.created && answer.header.revision.0 < revision => {
                    return Err(away("etcd has lost its memory"));
                }
                Ok(_) => {}
                Err(End::Silent | End::Gap) => return Ok(()),
                Err(End::Broken(cause)) => return Err(cause),
            }
        }
    }

    fn write(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        for part in pairs.chunks(OPERATIONS) {
            let first = self.full(part[0].0);
            self.leases.with_lasting(&first, |lease| {
                let puts: Vec<Value> = part
                    .iter()
                    .map(|(key, value)| write(&self.full(key), value, lease))
                    .collect();
                self.v3.transact("set", &first, &[], &puts, &[])
            })?;
        }
        Ok(())
    }

    fn swap(&self, swap: &ConditionalWrite<'_>) -> Result<Swap, StoreError> {
        let full = self.full(swap.key);
        let mut number = self
            .operation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *number += 1;
        let note = number.to_string();
        let answered = self.leases.with_lasting(&full, |lease| {
            let applied = self.applied.as_bytes();
            let puts = [
                write(&full, swap.value, lease),
                write(applied, note.as_bytes(), lease),
            ];
            let compare = [unchanged_since(&full, swap.revision)];
            let reads = [read(&full), read(applied)];
            self.v3
                .transact(swap.operation, &full, &compare, &puts, &reads)
        })?;
        let mut found = answered.all_held();
        let noted = found.pop().flatten();
        let is_ours = || noted.is_some_and(|noted| noted.value == note.as_bytes());
        if answered.succeeded || answered.repeated && is_ours() {
            return Ok(Swap::Done);
        }
        Ok(Swap::Lost(found.pop().flatten()))
    }

    fn remove(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.v3.remove(&self.full(key), None)? > 0)
    }

    fn keys(&self) -> Result<Vec<String>, StoreError> {
        let folder = self.name();
        let found = self.v3.range(folder.as_bytes(), true)?;
        let names = found.kvs.iter().map(|found| {
            let name = found.key.0.get(folder.len()..).unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        });
        Ok(names.collect())
    }

    fn count(&self) -> Result<u64, StoreError> {
        let count = self.v3.count(self.name().as_bytes())?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}
