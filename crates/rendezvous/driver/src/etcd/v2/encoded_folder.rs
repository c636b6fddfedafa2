//! A folder through the v2 API: base64 of the key, base64 of the value. The agents' stores of all runs
//! are in one folder.
//!
//! A `/` in the base64 of a key makes a folder of what is before it. Python's agents never find such
//! a key again; here it is found under its path.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use rdzv_rendezvous_proto::codec::text;
use rdzv_store::StoreError;

use super::key_watch::wait;
use super::requests::{Condition, Put, V2};
use super::wire::Node;
use crate::RendezvousError;
use crate::etcd::failure::{Cause, Failure};
use crate::etcd::http::Http;
use crate::etcd::options::EtcdOptions;
use crate::etcd::store::{ConditionalWrite, EtcdStore, Folder, Held, Swap};
use crate::etcd::watch::{End, SILENCE};

/// Where torchelastic's agents have their stores.
const FOLDER: &str = "/torch/elastic/store";

/// The keys in `folder` through the v2 API; by default in the folder of torchelastic's agents, where
/// those of all runs are. The server need not be up yet. Nothing in it is cleared by etcd.
///
/// Keys must not be empty; a [`PrefixStore`](rdzv_store::PrefixStore) around the store may have an
/// empty one.
pub fn open_store(
    options: &EtcdOptions,
    folder: Option<&str>,
) -> Result<EtcdStore, RendezvousError> {
    let client = V2::new(Http::new(options)?);
    let folder = EncodedFolder::new(client, folder.unwrap_or(FOLDER));
    Ok(EtcdStore::over(folder))
}

/// A folder of encoded keys.
pub(super) struct EncodedFolder {
    client: V2,
    /// Begins and ends with a slash.
    folder: String,
}

impl EncodedFolder {
    /// The keys of torchelastic's agents.
    pub(super) fn of_agents(client: V2) -> Self {
        Self::new(client, FOLDER)
    }

    fn new(client: V2, folder: &str) -> Self {
        Self {
            client,
            folder: format!("/{}/", folder.trim_matches('/')),
        }
    }

    fn full(&self, key: &str) -> String {
        format!("{}{}", self.folder, BASE64_STANDARD.encode(key))
    }

    /// What is under a key; else the index of the store.
    fn read(&self, operation: &'static str, key: &str) -> Result<Result<Held, u64>, StoreError> {
        let read = self.client.read(operation, &self.full(key))?;
        match read.node {
            Some(node) if !node.dir => Ok(Ok(Held {
                value: self.value(operation, key, &node)?,
                revision: signed(node.modified),
            })),
            _ => Ok(Err(read.index)),
        }
    }

    fn value(&self, operation: &'static str, key: &str, node: &Node) -> Result<Bytes, Failure> {
        match text::decode(node.value.as_bytes()) {
            Ok(value) => Ok(value.into()),
            Err(error) => {
                let cause = Cause::Refused {
                    code: 0,
                    message: format!("the value is none of a store: {error}"),
                };
                Err(self.client.failure(operation, key, cause))
            }
        }
    }
}

impl Folder for EncodedFolder {
    fn http(&self) -> &Http {
        self.client.http()
    }

    fn name(&self) -> String {
        self.folder.clone()
    }

    fn separate(&self) -> Box<dyn Folder> {
        Box::new(Self::new(self.client.separate(), &self.folder))
    }

    fn batch(&self) -> usize {
        1
    }

    fn has_extended_api(&self) -> bool {
        false
    }

    fn held(&self, operation: &'static str, key: &str) -> Result<Option<Held>, StoreError> {
        Ok(self.read(operation, key)?.ok())
    }

    fn values(&self, keys: &[&str]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let values = keys.iter().map(|key| self.held("get", key));
        values
            .map(|held| Ok(held?.map(|held| held.value)))
            .collect()
    }

    fn missing<'a>(
        &self,
        operation: &'static str,
        keys: &[&'a str],
    ) -> Result<(Vec<&'a str>, i64), StoreError> {
        let (mut missing, mut as_of) = (Vec::new(), i64::MAX);
        for key in keys {
            if let Err(index) = self.read(operation, key)? {
                missing.push(*key);
                as_of = as_of.min(signed(index));
            }
        }
        Ok((missing, as_of))
    }

    fn wait_for_write(&self, key: &str, revision: i64, limit: Duration) -> Result<(), Cause> {
        let next = revision.unsigned_abs().saturating_add(1);
        match wait(&self.client, &self.full(key), next, SILENCE.min(limit)) {
            Err(End::Broken(cause)) => Err(cause),
            _ => Ok(()),
        }
    }

    fn write(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        for (key, value) in pairs {
            let value = BASE64_STANDARD.encode(value);
            self.client
                .write("set", &self.full(key), &value, Condition::Always, None)?;
        }
        Ok(())
    }

    fn swap(&self, swap: &ConditionalWrite<'_>) -> Result<Swap, StoreError> {
        let ConditionalWrite { operation, key, .. } = *swap;
        let condition = match swap.revision {
            0 => Condition::Absent,
            index => Condition::Unchanged(index.unsigned_abs()),
        };
        let value = BASE64_STANDARD.encode(swap.value);
        let put = self
            .client
            .write(operation, &self.full(key), &value, condition, None)?;
        match put {
            Put::Done(_) => Ok(Swap::Done),
            Put::Refused { maybe_done: false } => Ok(Swap::Lost(self.held(operation, key)?)),
            // The v2 API has nothing by which the two cases can be told apart.
            Put::Refused { maybe_done: true } => {
                let cause = Cause::Away {
                    reason: "the answer to a write was lost, and whether it was carried out \
                             cannot be found out"
                        .to_owned(),
                    maybe_done: true,
                };
                Err(self.client.failure(operation, key, cause).into())
            }
        }
    }

    fn remove(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.client.remove(&self.full(key))?)
    }

    fn keys(&self) -> Result<Vec<String>, StoreError> {
        let read = self
            .client
            .read("list", self.folder.trim_end_matches('/'))?;
        let mut keys = Vec::new();
        let mut folders: Vec<Node> = read.node.into_iter().collect();
        while let Some(folder) = folders.pop() {
            for node in folder.nodes {
                if node.dir {
                    folders.push(node);
                } else if let Some(name) = node.key.strip_prefix(&self.folder)
                    && let Ok(key) = BASE64_STANDARD.decode(name)
                    && let Ok(key) = String::from_utf8(key)
                {
                    keys.push(key);
                }
            }
        }
        Ok(keys)
    }

    fn count(&self) -> Result<u64, StoreError> {
        Ok(self.keys()?.len() as u64)
    }
}

/// An index of the v2 API, which etcd itself keeps as a revision.
fn signed(index: u64) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}
