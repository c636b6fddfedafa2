//! The state of a run in etcd.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdzv_core::ident::RunId;
use rdzv_rendezvous_proto::NodeDesc;
use rdzv_store::{Breaker, Store};

use super::http::Client;
use super::layout::Layout;
use super::leases::Leases;
use super::options::EtcdOptions;
use super::store::EtcdStore;
use super::torchrun::refuse_run_of_torchrun;
use super::watch::{Observer, Watch};
use super::wire::{KeyValue, read, unchanged_since, write};
use crate::RendezvousError;
use crate::dynamic::shared::{SharedState, Token, Written};

/// The state of one run, shared through etcd's v3 API.
///
/// Ends its watch and its leases when it is dropped; the agents' stores that it has handed out live
/// on.
#[derive(Debug)]
pub struct EtcdState {
    client: Client,
    layout: Layout,
    /// First to go, because it uses the leases.
    watch: Option<Watch>,
    leases: Arc<Leases>,
    /// For how long the lease of a node lives on after the node.
    life: Duration,
    /// What the others are told by is who tells it.
    writer: String,
    /// The name of the backend.
    name: &'static str,
    /// The run if agents of torchrun may use it, until that has been checked.
    unchecked: Option<RunId>,
}

impl EtcdState {
    /// The name of the backend.
    pub const NAME: &'static str = "etcd";

    /// The name of torchrun's backend for etcd's v2 API; here it uses the v3 API, too.
    pub const V2_NAME: &'static str = "etcd-v2";

    /// The state of a run on that server. Nothing is asked of the server before the first call, but
    /// its name is looked up.
    pub fn open(options: &EtcdOptions, run_id: &RunId) -> Result<Self, RendezvousError> {
        let client = Client::new(options)?;
        let layout = Layout::new(&options.prefix, run_id);
        let leases = Arc::new(Leases::new(client.clone(), options.lease_time_to_live)?);
        Ok(Self {
            client,
            layout,
            watch: None,
            leases,
            life: options.lease_time_to_live,
            writer: format!("{:016x}", fastrand::u64(..)),
            name: Self::NAME,
            unchecked: None,
        })
    }

    /// The same state for the backend `etcd-v2`: this node does not join a run of torchrun.
    pub(super) fn in_place_of_v2(mut self, run_id: &RunId) -> Self {
        self.name = Self::V2_NAME;
        self.unchecked = Some(run_id.clone());
        self
    }
}

fn token_of(revision: i64) -> Token {
    Token(revision.to_be_bytes().to_vec())
}

/// The revision that a token stands for. One that is not ours matches no revision.
fn revision_of(token: &Token) -> i64 {
    let bytes = token.0.as_slice().try_into();
    bytes.map_or(-1, i64::from_be_bytes)
}

fn pair(held: KeyValue) -> (Bytes, Token) {
    let token = token_of(held.mod_revision.0);
    (held.value, token)
}

impl SharedState for EtcdState {
    fn name(&self) -> &str {
        self.name
    }

    fn get(&mut self) -> Result<Option<(Bytes, Token)>, RendezvousError> {
        let (held, _) = self.client.read(self.layout.state().as_bytes())?;
        Ok(held.map(pair))
    }

    fn set(&mut self, state: &[u8], token: Option<&Token>) -> Result<Written, RendezvousError> {
        let key = self.layout.state();
        let key = key.as_bytes();
        let expected = unchanged_since(key, token.map_or(0, revision_of));
        let answered = self.leases.with_lasting(key, |lease| {
            let compare = std::slice::from_ref(&expected);
            let put = [write(key, state, lease)];
            self.client
                .transact("write", key, compare, &put, &[read(key)])
        })?;
        if answered.succeeded {
            let token = token_of(answered.header.revision.0);
            return Ok(Written {
                now: Some((Bytes::copy_from_slice(state), token)),
                won: true,
            });
        }
        let now = answered.all_held().pop().flatten();
        // An earlier attempt may have been carried out and its answer lost. Then what is there is
        // what was to be written, heartbeat and all, and nobody else writes that.
        let won = answered.repeated && now.as_ref().is_some_and(|now| now.value == state);
        Ok(Written {
            now: now.map(pair),
            won,
        })
    }

    fn watch(&mut self, observer: Observer) -> Result<bool, RendezvousError> {
        // The one before ends first, so that nobody is notified twice.
        self.watch = None;
        let leases = Arc::clone(&self.leases);
        self.watch = Some(Watch::start(
            &self.client,
            self.layout.clone(),
            leases,
            observer,
        )?);
        Ok(true)
    }

    fn notify(&mut self) -> Result<(), RendezvousError> {
        // Not written together with the state, as most writes are heartbeats. If the writer dies in
        // between, the end of its lease is what the others hear.
        let key = self.layout.changes();
        self.leases.with_lasting(key.as_bytes(), |lease| {
            let put = [write(key.as_bytes(), self.writer.as_bytes(), lease)];
            self.client
                .transact("write", key.as_bytes(), &[], &put, &[])
        })?;
        Ok(())
    }

    fn announce(&mut self, node: Option<&NodeDesc>) -> Result<(), RendezvousError> {
        if let Some(run_id) = &self.unchecked {
            refuse_run_of_torchrun(&self.client, run_id)?;
            self.unchecked = None;
        }
        match node {
            Some(node) => self.leases.announce(&self.layout.member(node))?,
            None => self.leases.retract(),
        }
        Ok(())
    }

    fn losses_known_within(&self) -> Duration {
        // etcd looks every half second whose time has come; the rest is for a busy machine.
        self.life + Duration::from_secs(2)
    }

    fn gives_up_after(&self) -> Duration {
        self.client.limit()
    }

    fn round_store(&self, round: u64) -> Result<Arc<dyn Store>, RendezvousError> {
        if let Some(finished) = round.checked_sub(1).filter(|&finished| finished > 0) {
            let end = self.layout.round(finished);
            let first = self.layout.round(0);
            self.client.remove(first.as_bytes(), Some(end.as_bytes()))?;
        }
        let folder = self.layout.round(round);
        Ok(Arc::new(EtcdStore::new(
            &self.client,
            Arc::clone(&self.leases),
            &folder,
        )))
    }

    fn breaker(&self) -> Option<Breaker> {
        let client = self.client.clone();
        Some(Arc::new(move || client.close()))
    }

    fn local_address(&self) -> Option<IpAddr> {
        self.client.local_address()
    }

    fn place(&self) -> String {
        self.client.place().to_owned()
    }
}

impl Drop for EtcdState {
    fn drop(&mut self) {
        self.leases.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_revision() {
        assert_eq!(revision_of(&token_of(42)), 42);
        assert_eq!(revision_of(&Token(b"foreign".to_vec())), -1);
    }
}
