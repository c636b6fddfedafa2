//! Configuration of a rendezvous backend.

use rdzv_core::endpoint::Endpoint;
use rdzv_store::{Credentials, StorePolicy, TorchClients};

use crate::{GroupStatus, Kept, Program, RendezvousConfig, RendezvousError};

/// Backend, endpoint, run, number of nodes, and options of the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousParameters {
    /// Name of the backend (`--rdzv-backend`).
    pub backend: String,
    /// Endpoint `host:port` as typed (`--rdzv-endpoint`).
    pub endpoint: String,
    /// Name of the run (`--rdzv-id`).
    pub run_id: String,
    /// Minimum number of nodes.
    pub min_nodes: u32,
    /// Maximum number of nodes.
    pub max_nodes: u32,
    /// Address of this node for other nodes; `None` detects it.
    pub local_addr: Option<String>,
    /// Program of the workers, to keep agents of other programs out.
    ///
    /// Only `c10d` with a store server of rdzv checks it.
    pub program: Option<Program>,
    /// Credentials that this node presents, and demands from other nodes.
    ///
    /// Default: none.
    pub credentials: Credentials,
    /// Clients of the workers' store that need no credentials.
    ///
    /// Default [`TorchClients::Job`].
    pub torch_clients: TorchClients,
    /// Other voters to ask for the coordinator of the job (`c10d`).
    ///
    /// This node asks them if the endpoint is on another machine, because the job may have
    /// continued without that machine. Default: none.
    pub known_voters: Vec<Endpoint>,
    /// Sockets and notes for the agent that replaces this one (`c10d`).
    ///
    /// Default: none.
    pub kept: Option<Kept>,
    /// Storage for the status of the group (`c10d`), if anything reports it.
    ///
    /// Default: none.
    pub group: Option<GroupStatus>,
    /// `true` if the kernel kills this node's workers when the agent ends (`c10d`).
    ///
    /// The end of the agent's connection then proves to the coordinator that both have ended.
    /// Default: `false`.
    pub ends_workers: bool,
    /// Options of the backend (`--rdzv-conf`).
    pub config: RendezvousConfig,
}

impl RendezvousParameters {
    /// Checks the name of the backend and the numbers of nodes.
    pub fn new(
        backend: impl Into<String>,
        endpoint: impl Into<String>,
        run_id: impl Into<String>,
        min_nodes: u32,
        max_nodes: u32,
        config: impl Into<RendezvousConfig>,
    ) -> Result<Self, RendezvousError> {
        let backend = backend.into();
        if backend.is_empty() {
            return Err(RendezvousError::argument(
                "The rendezvous backend name must be a non-empty string.",
            ));
        }
        if min_nodes < 1 {
            return Err(RendezvousError::argument(format!(
                "The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero."
            )));
        }
        if max_nodes < min_nodes {
            return Err(RendezvousError::argument(format!(
                "The maximum number of rendezvous nodes ({max_nodes}) must be greater than or \
                 equal to the minimum number of rendezvous nodes ({min_nodes})."
            )));
        }
        Ok(Self {
            backend,
            endpoint: endpoint.into(),
            run_id: run_id.into(),
            min_nodes,
            max_nodes,
            local_addr: None,
            program: None,
            credentials: Credentials::default(),
            torch_clients: TorchClients::default(),
            known_voters: Vec::new(),
            kept: None,
            group: None,
            ends_workers: false,
            config: config.into(),
        })
    }

    /// Returns the policy of the stores that this node hosts or connects to.
    pub fn store_policy(&self) -> Result<StorePolicy, RendezvousError> {
        Ok(StorePolicy {
            limits: self.config.store_limits()?,
            credentials: self.credentials.clone(),
            torch_clients: self.torch_clients,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_parameters_are_refused() {
        let text = |backend: &str, min, max| {
            RendezvousParameters::new(backend, "", "", min, max, RendezvousConfig::default())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text("", 1, 1),
            "The rendezvous backend name must be a non-empty string."
        );
        assert_eq!(
            text("static", 0, 1),
            "The minimum number of rendezvous nodes (0) must be greater than zero."
        );
        assert_eq!(
            text("static", 3, 2),
            "The maximum number of rendezvous nodes (2) must be greater than or equal to the \
             minimum number of rendezvous nodes (3)."
        );
    }
}
