//! Rendezvous of a single node.

use std::net::TcpListener;
use std::time::Duration;

use rdzv_agent_proto::group::policy::EXPLAINED_WITHIN;
use rdzv_agent_proto::group::{Master, Round};
use rdzv_core::endpoint::bare_host;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::dynamic::reserve_port;
use rdzv_store::{Pinger, ServerOptions, StorePolicy, TcpStoreServer};

use crate::AgentError;
use crate::config::{MasterPort, RendezvousOptions};
use crate::error::system;

/// Address of a node that no other node needs to reach.
const LOOPBACK: &str = "127.0.0.1";

/// Time limit for reaching the server, which listens already.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct LocalRendezvous {
    /// Address from the configuration, at which other hosts may reach the store.
    address: Option<String>,
    share_store: bool,
    master_port: MasterPort,
    policy: StorePolicy,
    rounds: u64,
    server: Option<TcpStoreServer>,
    /// Socket that reserves the port for the worker that hosts the store.
    port: Option<TcpListener>,
}

impl LocalRendezvous {
    pub(super) fn new(options: &RendezvousOptions) -> Self {
        Self {
            address: options
                .local_addr
                .as_deref()
                .map(|host| bare_host(host).to_owned()),
            share_store: options.share_store,
            master_port: options.master_port.clone(),
            policy: options.store_policy.clone(),
            rounds: 0,
            server: None,
            port: None,
        }
    }

    /// Returns the next round.
    /// The server is the same for the whole run. Without a shared store, each attempt gets a new
    /// free port, unless the configuration specifies the port or a socket.
    pub(super) fn round(&mut self) -> Result<Round, AgentError> {
        let port = if self.share_store {
            match &self.server {
                Some(server) => server.port(),
                None => self.server.insert(self.start_server()?).port(),
            }
        } else {
            let no_port = system("find a free port for the workers' store");
            self.keep_port_free().map_err(no_port)?
        };
        let number = self.rounds;
        self.rounds += 1;
        Ok(Round {
            number,
            group_rank: GroupRank(0),
            group_world_size: 1,
            replaced: Vec::new(),
            master: Master {
                addr: self.address.clone().unwrap_or_else(|| LOOPBACK.to_owned()),
                port,
                hosted_by_agent: self.share_store,
            },
            losses_known_within: EXPLAINED_WITHIN,
            answers_barrier: false,
        })
    }

    /// Announces the server under the address that the workers will use.
    fn announce(&self, server: &TcpStoreServer) -> Result<(), AgentError> {
        match &self.address {
            Some(address) => {
                let port = server.port();
                Ok(self
                    .policy
                    .announce_workers(address, port, ANNOUNCED_WITHIN)?)
            }
            None => Ok(()),
        }
    }

    fn start_server(&self) -> Result<TcpStoreServer, AgentError> {
        // With a specified address, the server must not listen on the loopback address only.
        let host = self.address.is_none().then(|| LOOPBACK.to_owned());
        let (port, listener) = match &self.master_port {
            MasterPort::Free => (0, None),
            MasterPort::Fixed(port) => (*port, None),
            MasterPort::Kept(listener) => {
                let what = "listen on the socket that was kept for the workers' store";
                let listener = listener.try_clone().map_err(system(what))?;
                (0, Some(listener))
            }
        };
        let server = TcpStoreServer::start(ServerOptions {
            listeners: Vec::from_iter(listener),
            ..self.policy.server(host, port)
        })?;
        self.announce(&server)?;
        Ok(server)
    }

    fn keep_port_free(&mut self) -> std::io::Result<u16> {
        let host = self.address.as_deref().unwrap_or(LOOPBACK);
        let listener = match &self.master_port {
            MasterPort::Free => reserve_port((host, 0))?,
            MasterPort::Fixed(port) => reserve_port((host, *port))?,
            MasterPort::Kept(listener) => listener.try_clone()?,
        };
        let port = listener.local_addr()?.port();
        self.port = Some(listener);
        Ok(port)
    }

    /// Returns a ping for the server's thread, if there is a server.
    pub(super) fn pinger(&self) -> Option<Pinger> {
        self.server.as_ref().map(TcpStoreServer::pinger)
    }

    pub(super) fn purge(&self) {
        if let Some(server) = &self.server {
            server.purge(&[]);
        }
    }

    pub(super) fn release_port(&mut self) -> Option<TcpListener> {
        self.port.take()
    }
}
