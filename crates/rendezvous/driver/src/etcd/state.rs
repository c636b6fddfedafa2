//! State of a run, stored in etcd.

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
use crate::dynamic::shared::{SharedState, StateToken, Written};

/// State of one run, shared through etcd's v3 API.
///
/// Dropping it stops its watch and ends the lease of this node. The agents' stores that it has
/// returned remain usable.
#[derive(Debug)]
pub struct EtcdState {
    client: Client,
    layout: Layout,
    /// Watch on the run.
    ///
    /// This field is dropped before the leases, because the watch uses them.
    watch: Option<Watch>,
    leases: Arc<Leases>,
    life: Duration,
    /// Random identifier of this node, which it writes to notify the others.
    writer: String,
    name: &'static str,
    /// Run that was not checked yet for use by torchrun agents (`etcd-v2` only).
    unchecked: Option<RunId>,
}

impl EtcdState {
    /// Name of the backend.
    pub const NAME: &'static str = "etcd";

    /// Name of torchrun's v2 API backend. rdzv uses the v3 API for it too.
    pub const V2_NAME: &'static str = "etcd-v2";

    /// Opens the state of a run on a server.
    ///
    /// This function resolves the server's name, but sends no request.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if a certificate cannot be read, or no thread can be started.
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

    /// Turns this state into one for `etcd-v2`, which rejects a run of torchrun.
    pub(super) fn for_v2(mut self, run_id: &RunId) -> Self {
        self.name = Self::V2_NAME;
        self.unchecked = Some(run_id.clone());
        self
    }
}

fn token_of(revision: i64) -> StateToken {
    StateToken(revision.to_be_bytes().to_vec())
}

/// Returns the revision in a token. A foreign token matches no revision.
fn revision_of(token: &StateToken) -> i64 {
    let bytes = token.0.as_slice().try_into();
    bytes.map_or(-1, i64::from_be_bytes)
}

fn pair(held: KeyValue) -> (Bytes, StateToken) {
    let token = token_of(held.mod_revision.0);
    (held.value, token)
}

impl SharedState for EtcdState {
    fn name(&self) -> &str {
        self.name
    }

    fn get(&mut self) -> Result<Option<(Bytes, StateToken)>, RendezvousError> {
        let (held, _) = self.client.read(self.layout.state().as_bytes())?;
        Ok(held.map(pair))
    }

    fn set(
        &mut self,
        state: &[u8],
        token: Option<&StateToken>,
    ) -> Result<Written, RendezvousError> {
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
        // The server may have executed an earlier attempt whose answer was lost. Then the present
        // state equals the new one, heartbeats included, and no other node writes that state.
        let won = answered.repeated && now.as_ref().is_some_and(|now| now.value == state);
        Ok(Written {
            now: now.map(pair),
            won,
        })
    }

    fn watch(&mut self, observer: Observer) -> Result<bool, RendezvousError> {
        // The previous watch ends first, so that the observer gets no duplicate notices.
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
        // The state is written separately, because most writes are only heartbeats. If the writer
        // dies between the two writes, the others notice the end of its lease.
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
        // etcd checks for expired leases every half second; the rest allows for a busy machine.
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

    fn endpoint(&self) -> String {
        self.client.endpoint().to_owned()
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
        assert_eq!(revision_of(&StateToken(b"foreign".to_vec())), -1);
    }
}
