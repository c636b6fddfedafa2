//! The workers of a test: other processes (`rpc_worker`), and one of its own.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rdzv_rpc::{RpcAgent, RpcOptions};
use rdzv_store::{ServerOptions, TcpStore, TcpStoreOptions, TcpStoreServer};
use rdzv_testing::Process;

/// How long anything may take that no test is about.
pub(crate) const TEST_LIMIT: Duration = Duration::from_secs(20);

/// The same as in the program of the workers.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Where the workers of one test meet.
pub(crate) struct Job {
    server: TcpStoreServer,
    /// None: a dynamic group.
    world_size: Option<u32>,
}

impl Job {
    pub(crate) fn new(world_size: Option<u32>) -> Self {
        let server = TcpStoreServer::start(ServerOptions {
            port: 0,
            ..ServerOptions::default()
        });
        Self {
            server: server.unwrap(),
            world_size,
        }
    }

    /// Another process.
    pub(crate) fn start(&self, name: &str, rank: u32) -> Worker {
        let world_size = self.world_size.unwrap_or(0);
        let mut command = Command::new(rdzv_testing::program("rpc_worker"));
        command
            .arg(format!("127.0.0.1:{}", self.server.port()))
            .arg(name)
            .arg(rank.to_string())
            .arg(world_size.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Worker(Process::start(&mut command))
    }

    /// An agent of this process.
    pub(crate) fn join(&self, name: &str, rank: u32) -> RpcAgent {
        let store = TcpStoreOptions::new("127.0.0.1", self.server.port());
        let store = Arc::new(TcpStore::connect(store).unwrap());
        let options = RpcOptions {
            init_deadline: TEST_LIMIT,
            lease: LEASE,
            ..RpcOptions::default()
        };
        let builder = RpcAgent::builder(name)
            .rank(rank)
            .world_size(self.world_size);
        builder.store(store).options(options).connect().unwrap()
    }
}

/// A worker in a process of its own, which ends with this.
pub(crate) struct Worker(Process);

impl Worker {
    /// Waits until it is in its group.
    pub(crate) fn ready(self) -> Self {
        assert_eq!(self.0.line(), "ready");
        self
    }

    /// Kills it, with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }
}
