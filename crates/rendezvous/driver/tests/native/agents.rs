//! Host of a rendezvous, and its agents.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rdzv_core::ident::RunId;
use rdzv_rendezvous::dynamic::native::{Native, NativeOptions, extension};
use rdzv_rendezvous::{
    Change, JoiningAgent, Onlookers, RendezvousBackend as _, RendezvousError, RendezvousInfo,
};
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store::{ServerOptions, StorePolicy, TcpStore, TcpStoreOptions, TcpStoreServer};

use crate::support;

/// Longer than any step that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn host() -> TcpStoreServer {
    TcpStoreServer::start(ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        extension: Some(extension()),
        ..ServerOptions::default()
    })
    .unwrap()
}

pub(crate) fn connect(address: SocketAddr) -> TcpStore {
    let host = address.ip().to_string();
    TcpStore::connect(TcpStoreOptions::new(host, address.port())).unwrap()
}

pub(crate) struct Agent {
    pub(crate) native: Native,
    pub(crate) changes: mpsc::Receiver<Change>,
}

impl Agent {
    /// Creates the agent with this number, which also orders it among the nodes.
    pub(crate) fn new(address: SocketAddr, number: i64, settings: Settings) -> Self {
        Self::with(Self::options(address, number, settings))
    }

    pub(crate) fn options(address: SocketAddr, number: i64, settings: Settings) -> NativeOptions {
        NativeOptions {
            policy: StorePolicy::default(),
            store: Arc::new(connect(address)),
            run_id: RunId::new("run"),
            settings,
            node: NodeDesc::new("127.0.0.1", number),
            program: None,
            kept: None,
            ends_workers: false,
            voters: None,
            candidate: None,
            onlookers: Onlookers::default(),
        }
    }

    pub(crate) fn with(options: NativeOptions) -> Self {
        let met = Native::connect(options, LONG).unwrap();
        let mut native = met.coordinator().unwrap();
        let (sender, changes) = mpsc::channel();
        native.set_observer(Box::new(move |change| {
            let _ = sender.send(change);
        }));
        Self { native, changes }
    }

    pub(crate) fn join(&mut self) -> Result<RendezvousInfo, RendezvousError> {
        self.native.join(&member())
    }

    /// Joins in a separate thread.
    pub(crate) fn joining(mut self) -> JoinHandle<(Self, Result<RendezvousInfo, RendezvousError>)> {
        std::thread::spawn(move || {
            let info = self.join();
            (self, info)
        })
    }

    pub(crate) fn change(&self) -> Change {
        self.changes.recv_timeout(LONG).unwrap()
    }
}

pub(crate) fn member() -> JoiningAgent {
    JoiningAgent {
        local_world_size: 2,
        ..support::member()
    }
}

pub(crate) fn settings(min: u32, max: u32) -> Settings {
    Settings {
        last_call_timeout: Duration::from_millis(300),
        ..Settings::new(min, max)
    }
}

/// Joins all agents at the same time; returns the results in the same order.
pub(crate) fn join_all(agents: Vec<Agent>) -> Vec<(Agent, RendezvousInfo)> {
    let joining: Vec<_> = agents.into_iter().map(Agent::joining).collect();
    joining
        .into_iter()
        .map(|agent| {
            let (agent, info) = agent.join().unwrap();
            (agent, info.unwrap())
        })
        .collect()
}
