//! The state of a run under its key of etcd's v2 API.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use rdzv_core::ident::RunId;
use rdzv_rendezvous_proto::codec::text;
use rdzv_store::{Breaker, PrefixStore, Store};

use super::encoded_folder::EncodedFolder;
use super::key_watch::watch_key;
use super::requests::{Condition, Put, V2};
use super::wire::Node;
use crate::RendezvousError;
use crate::dynamic::shared::{SharedState, Token, Written};
use crate::etcd::http::Http;
use crate::etcd::options::EtcdOptions;
use crate::etcd::store::EtcdStore;
use crate::etcd::watch::{Observer, Watch};

/// Where the states of all runs are.
const FOLDER: &str = "/torch/elastic/rendezvous/";

/// How long a state is kept that nobody writes. A living run writes heartbeats.
const LIFE_SECONDS: u64 = 7200;

/// The state of one run, shared through etcd's v2 API.
#[derive(Debug)]
pub struct EtcdV2State {
    client: V2,
    run_id: RunId,
    key: String,
    watch: Option<Watch>,
}

impl EtcdV2State {
    /// The name of the backend.
    pub const NAME: &'static str = "etcd-v2";

    /// The state of a run on that server. Nothing is asked of the server before the first call, but
    /// its name is looked up.
    pub fn open(options: &EtcdOptions, run_id: &RunId) -> Result<Self, RendezvousError> {
        let client = V2::new(Http::new(options)?);
        let key = format!("{FOLDER}{run_id}");
        Ok(Self {
            client,
            run_id: run_id.clone(),
            key,
            watch: None,
        })
    }

    fn pair(&self, node: Node) -> Result<(Bytes, Token), RendezvousError> {
        let pickle = text::decode(node.value.as_bytes());
        let pickle = pickle.map_err(|error| RendezvousError::Corrupt {
            what: format!("the state under the key {} is corrupt ({error})", self.key),
            place: self.place(),
        })?;
        Ok((pickle.into(), token_of(node.modified)))
    }
}

fn token_of(index: u64) -> Token {
    Token(index.to_be_bytes().to_vec())
}

/// The index that a token stands for. One that is not ours matches no index.
fn index_of(token: &Token) -> u64 {
    token
        .0
        .as_slice()
        .try_into()
        .map_or(u64::MAX, u64::from_be_bytes)
}

impl SharedState for EtcdV2State {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn get(&mut self) -> Result<Option<(Bytes, Token)>, RendezvousError> {
        let read = self.client.read("read", &self.key)?;
        read.node.map(|node| self.pair(node)).transpose()
    }

    fn set(&mut self, state: &[u8], token: Option<&Token>) -> Result<Written, RendezvousError> {
        let value = BASE64_STANDARD.encode(state);
        let condition = token.map_or(Condition::Absent, |token| {
            Condition::Unchanged(index_of(token))
        });
        let put = self
            .client
            .write("write", &self.key, &value, condition, Some(LIFE_SECONDS))?;
        match put {
            Put::Done(index) => Ok(Written {
                now: Some((Bytes::copy_from_slice(state), token_of(index))),
                won: true,
            }),
            Put::Refused { maybe_done } => {
                let now = self.get()?;
                // What was to be written, heartbeat and all, nobody else writes.
                let won = maybe_done && now.as_ref().is_some_and(|(now, _)| now == state);
                Ok(Written { now, won })
            }
        }
    }

    fn watch(&mut self, observer: Observer) -> Result<bool, RendezvousError> {
        // The one before ends first, so that nobody is notified twice.
        self.watch = None;
        self.watch = Some(watch_key(&self.client, &self.key, observer)?);
        Ok(true)
    }

    fn gives_up_after(&self) -> Duration {
        self.client.http().limit()
    }

    fn round_store(&self, round: u64) -> Result<Arc<dyn Store>, RendezvousError> {
        let store = EtcdStore::over(EncodedFolder::of_agents(self.client.separate()));
        let prefix = format!("torch.rendezvous.{}.{round}", self.run_id);
        Ok(Arc::new(PrefixStore::new(prefix, Arc::new(store))))
    }

    fn breaker(&self) -> Option<Breaker> {
        let http = self.client.http().clone();
        Some(Arc::new(move || http.close()))
    }

    fn local_address(&self) -> Option<IpAddr> {
        self.client.http().local_address()
    }

    fn place(&self) -> String {
        self.client.http().place().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_an_index() {
        assert_eq!(index_of(&token_of(42)), 42);
        assert_eq!(index_of(&Token(b"foreign".to_vec())), u64::MAX);
    }
}
