//! What a rendezvous backend is configured with.

use rdzv_core::endpoint::Endpoint;
use rdzv_store::{Credentials, StorePolicy, TorchClients};

use crate::{GroupStatus, Kept, Program, RendezvousConfig, RendezvousError};

/// Backend, endpoint, run and number of nodes, and the backend's own options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousParameters {
    /// Name of the backend (`--rdzv-backend`).
    pub backend: String,
    /// `host:port`, as typed (`--rdzv-endpoint`).
    pub endpoint: String,
    /// The run's name (`--rdzv-id`).
    pub run_id: String,
    /// Fewest nodes.
    pub min_nodes: u32,
    /// Most nodes.
    pub max_nodes: u32,
    /// The address of this node that others should use; `None` = found out.
    pub local_addr: Option<String>,
    /// The program of the workers, if agents of another program shall be told apart (`c10d` with a
    /// store server of ours).
    pub program: Option<Program>,
    /// The credentials that this node shows to the others, and demands of them. Default: none.
    pub credentials: Credentials,
    /// The clients of the workers' store that need not prove it. Default [`TorchClients::Job`].
    pub torch_clients: TorchClients,
    /// Further processes that are asked for the coordinator, where the endpoint is one and another machine's (`c10d`):
    /// voters of a job that goes on without that machine. Default: none.
    pub known_voters: Vec<Endpoint>,
    /// The sockets and notes that outlive this agent, where another one is started in place of it then (`c10d`).
    /// Default: nothing.
    pub kept: Option<Kept>,
    /// The status of the coordinator's group, if anybody may ask for it (`c10d`). Default: none.
    pub group: Option<GroupStatus>,
    /// Whether the kernel kills the workers of this node when its agent has ended (`c10d`): the coordinator then knows by the
    /// end of its connection that both have. Default: no.
    pub ends_workers: bool,
    /// The backend's options (`--rdzv-conf`).
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

    /// The policy of the stores that this node hosts, and reaches.
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
