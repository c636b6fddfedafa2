//! Parameters of a rendezvous backend.

use rdzv_core::endpoint::Endpoint;
use rdzv_store::{Credentials, StorePolicy, TorchClients};

use crate::{GroupStatus, Kept, Program, RendezvousConfig, RendezvousError};

/// Backend name, endpoint, run id, number of nodes, and backend options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousParameters {
    /// Name of the backend (`--rdzv-backend`).
    pub backend: String,
    /// Endpoint as the user typed it (`--rdzv-endpoint`).
    pub endpoint: String,
    /// Id of the run (`--rdzv-id`).
    pub run_id: String,
    /// Minimum number of nodes.
    pub min_nodes: u32,
    /// Maximum number of nodes.
    pub max_nodes: u32,
    /// Address at which other nodes reach this node; detected if `None`.
    pub local_addr: Option<String>,
    /// Program that the workers run, which keeps agents of other programs out.
    ///
    /// Only `c10d` with an rdzv store server checks it.
    pub program: Option<Program>,
    /// Credentials that this node presents, and requires from other nodes.
    ///
    /// The default is none.
    pub credentials: Credentials,
    /// Clients that need no credentials at the stores that this node hosts.
    ///
    /// The default is [`TorchClients::Job`].
    pub torch_clients: TorchClients,
    /// Other voters that this node can ask for the job's coordinator (`c10d`).
    ///
    /// This node asks them if the endpoint is on another machine, because the job may have
    /// continued without that machine. The default is none.
    pub known_voters: Vec<Endpoint>,
    /// Sockets and records that outlive this agent, for its replacement (`c10d`).
    ///
    /// The default is none.
    pub kept: Option<Kept>,
    /// Shared status of the group (`c10d`), if anything reports it.
    ///
    /// The default is none.
    pub group: Option<GroupStatus>,
    /// `true` if the kernel kills the workers when the agent exits (`c10d`).
    ///
    /// The clean end of its connection can then prove to the coordinator that both the agent and
    /// its workers have exited. The default is `false`.
    pub ends_workers: bool,
    /// `true` if the option `rank_order` is `sorted` by default (`c10d`).
    ///
    /// The default is `false`: nodes keep their ranks.
    pub sorts_ranks: bool,
    /// Backend options (`--rdzv-conf`).
    pub config: RendezvousConfig,
}

impl RendezvousParameters {
    /// Kind of store that c10d agents share, in lower case: `tcp` or `file`.
    ///
    /// The default is `tcp`. Other values are refused later.
    pub fn store_type(&self) -> String {
        let given = self.config.get("store_type").unwrap_or("tcp");
        given.trim().to_lowercase()
    }

    /// Creates parameters after checking the backend name and the numbers of nodes.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] names the option or parameter that is invalid.
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
            sorts_ranks: false,
            config: config.into(),
        })
    }

    /// Returns the policy for the stores that this node hosts or connects to.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] names the option or parameter that is invalid.
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
