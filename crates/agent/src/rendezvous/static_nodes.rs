//! Static rendezvous: node 0 hosts one store for the agents and the workers of all nodes.

use std::sync::Arc;
use std::time::Duration;

use rdzv_agent_proto::group::Round;
use rdzv_agent_proto::group::policy::EXPLAINED_WITHIN;
use rdzv_rendezvous::dynamic::native::NativeOptions;
use rdzv_rendezvous::{RendezvousInfo, StaticParameters, StaticRendezvous};
use rdzv_store::{Pinger, Store};

use super::failure_channel::ChannelAddress;
use super::round;
use crate::AgentError;

/// How long the host of the store waits at the end until the other agents have read their last key.
pub(super) const LINGER: Duration = Duration::from_secs(10);

/// How long it waits until they have read that this node has failed, which is announced at once.
pub(super) const UNTIL_READ: Duration = Duration::from_secs(1);

/// Where the nodes have met.
#[derive(Debug)]
pub(crate) struct StaticNodes {
    rendezvous: StaticRendezvous,
    info: RendezvousInfo,
    run_id: String,
}

impl StaticNodes {
    /// Meets the other nodes. Waits for them.
    pub(super) fn others(parameters: StaticParameters) -> Result<Self, AgentError> {
        let run_id = parameters.run_id.as_str().to_owned();
        let mut rendezvous = StaticRendezvous::new(parameters);
        let info = rendezvous.join()?;
        Ok(Self {
            rendezvous,
            info,
            run_id,
        })
    }

    /// The one round that there is.
    pub(super) fn round(&self) -> Round {
        round(&self.info, true, EXPLAINED_WITHIN)
    }

    /// The agents' part of the store.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.info.store)
    }

    /// Removes what workers left in the store, and nothing of the agents: their keys are below the
    /// run id, and they have counted themselves in under `init/`.
    pub(super) fn purge(&self) {
        if let Some(server) = &self.info.server {
            server.purge(&[&format!("/{}/", self.run_id), "/init/"]);
        }
    }

    /// Asks the server, if this node hosts it, whether it is alive.
    pub(super) fn pinger(&self) -> Option<Pinger> {
        self.info.server.as_ref().map(|server| server.pinger())
    }

    /// The run that this node joins to notice that another one is gone.
    pub(super) fn liveness(&self) -> Option<NativeOptions> {
        self.rendezvous.liveness()
    }

    /// Where the nodes tell one another of failures.
    pub(super) fn failure_address(&self) -> ChannelAddress {
        ChannelAddress {
            host: self.info.master_addr.clone(),
            port: self.info.master_port,
            run_id: self.run_id.clone(),
            us: self.info.rank.0,
            nodes: self.info.world_size,
        }
    }

    /// Leaves. If this agent hosts the store, waits for those who still read, at most so long.
    pub(super) fn leave(self, most: Duration) {
        let RendezvousInfo { store, server, .. } = self.info;
        drop((store, self.rendezvous));
        // Only a thread that still waits in the store can hold it too; then nobody is waited for.
        if let Some(server) = server.and_then(Arc::into_inner) {
            server.shutdown(most);
        }
    }
}
