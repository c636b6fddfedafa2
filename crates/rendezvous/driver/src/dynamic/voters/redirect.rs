//! Redirect at the endpoint of a group whose members are all elsewhere.
//!
//! An agent on the endpoint's machine answers there with the endpoint of the coordinator. A new
//! node that knows only the endpoint thus finds the group.
//!
//! The redirect does not vote. Voters connect to the endpoint while no member has it. The redirect
//! accepts these connections, and sends no answer.

use std::io;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};
use rdzv_lock::Mutex;
use rdzv_rendezvous_proto::coordinator::PREFIX;
use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_VOTER};
use rdzv_store::{StoreError, StorePolicy, TcpStoreServer};
use rdzv_store_proto::server::{Extension, Reach};
use rdzv_voters::{ControlFrame, FRAME_BOUND};
use tracing::{info, warn};

use crate::bind::loopback;
use crate::runtime::{Task, blocking, sleep, spawn};

/// Pause between two attempts to listen while another process has the endpoint.
///
/// That process may be about to end.
const AGAIN: Duration = Duration::from_secs(1);

/// Server that answers at the endpoint while no member of the group is there.
#[derive(Debug)]
pub struct Redirect {
    site: Site,
    /// Task that listens, or waits until it can.
    task: Option<Task>,
}

impl Redirect {
    /// Creates the redirect for the endpoint of a job, which is on this machine.
    pub fn new(endpoint: Endpoint, policy: StorePolicy) -> Self {
        let site = Site {
            endpoint,
            policy,
            coordinator: Arc::default(),
            server: Arc::default(),
        };
        Self { site, task: None }
    }

    /// Sets the members of the group, the coordinator first.
    pub fn members_changed(&mut self, members: &[String]) {
        let endpoint = self.site.endpoint.to_string();
        let elsewhere = members.first().filter(|_| !members.contains(&endpoint));
        let Some(coordinator) = elsewhere else {
            return self.stop();
        };
        coordinator.clone_into(&mut self.site.coordinator.lock());
        if self.task.is_none() {
            match spawn(self.site.clone().listen()) {
                Ok(task) => self.task = Some(task),
                Err(error) => warn!("new nodes receive no answer at {endpoint}: {error}"),
            }
        }
    }

    /// Leaves the endpoint to another process, or to a voter of this process.
    pub(super) fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.cancel();
        }
        // Waits for an attempt to listen, which would occupy the endpoint otherwise.
        *take(&mut self.site.server).lock() = Server::Left;
    }
}

impl Drop for Redirect {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Server at the endpoint.
#[derive(Debug, Default)]
enum Server {
    /// The server does not run yet; another process may have the endpoint.
    #[default]
    Awaited,
    /// The server runs until this value is dropped.
    Serves(#[expect(dead_code)] TcpStoreServer),
    /// The redirect has left the endpoint to other processes.
    Left,
}

#[derive(Debug, Clone)]
struct Site {
    endpoint: Endpoint,
    policy: StorePolicy,
    /// Endpoint of the coordinator, as this agent last received it.
    coordinator: Arc<Mutex<String>>,
    server: Arc<Mutex<Server>>,
}

impl Site {
    async fn listen(self) {
        loop {
            let (site, endpoint) = (self.clone(), &self.endpoint);
            match blocking(move || site.serve()).await {
                Ok(()) => {
                    return info!(
                        "no member of the group is at {endpoint} any longer; this node redirects \
                         new nodes from there to the coordinator"
                    );
                }
                Err(StoreError::Listen { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return warn!("new nodes receive no answer at {endpoint}: {error}"),
            }
            // The kernel does not notify when a port becomes free.
            sleep(Some(AGAIN)).await;
        }
    }

    fn serve(&self) -> Result<(), StoreError> {
        let mut serving = self.server.lock();
        if matches!(*serving, Server::Awaited) {
            let endpoint = &self.endpoint;
            let mut server = (self.policy).server(loopback(&endpoint.host), endpoint.port);
            server.limits.max_extension_bytes = FRAME_BOUND;
            // An agent of torchrun that takes this server for its store exits immediately, instead
            // of waiting for nodes that never arrive.
            server.limits.max_keys = 0;
            server.extension = Some(Box::new(Answers(Arc::clone(&self.coordinator))));
            *serving = Server::Serves(TcpStoreServer::start(server)?);
        }
        Ok(())
    }
}

/// Extension that answers like a voter that is not the coordinator.
#[derive(Debug)]
struct Answers(Arc<Mutex<String>>);

impl Extension for Answers {
    fn prefix(&self) -> &[u8] {
        PREFIX.as_bytes()
    }

    fn probe(&self) -> (u32, u32) {
        (PROBE, PROBE_VOTER)
    }

    fn watches(&self) -> bool {
        false
    }

    fn request(&mut self, _: Now, from: ConnId, opcode: u8, payload: &[u8], reach: &mut Reach<'_>) {
        match ControlFrame::read(opcode, payload) {
            Ok(ControlFrame::WhoCoordinates) => {
                let elsewhere = ControlFrame::Elsewhere {
                    cluster: 0,
                    epoch: 0,
                    term: 0,
                    address: self.0.lock().clone(),
                };
                let mut frame = Vec::new();
                elsewhere.write(&mut frame);
                reach.send(from, &frame);
            }
            // The sender is a voter.
            Ok(_) => {}
            Err(_) => reach.dismiss(from, "the coordinator is at another endpoint"),
        }
    }

    fn closed(&mut self, _: Now, _: ConnId, _: &mut Reach<'_>) {}

    fn before(&mut self, _: Now, _: &[u8], _: bool, _: &mut Reach<'_>) {}

    fn after(&mut self, _: Now, _: &[u8], _: &mut Reach<'_>) {}

    fn deadline(&self) -> Option<Mono> {
        None
    }

    fn tick(&mut self, _: Now, _: &mut Reach<'_>) {}
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rdzv_store::{Store as _, TcpStore, TcpStoreOptions};
    use rdzv_testing::free_port;

    use super::super::search::Search;
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn endpoint() -> Endpoint {
        Endpoint {
            host: "127.0.0.1".to_owned(),
            port: free_port(),
        }
    }

    /// Returns an endpoint at which no process listens.
    fn coordinator() -> String {
        format!("127.0.0.1:{}", free_port())
    }

    /// Connects a store client, once a server listens at the endpoint.
    fn client(policy: &StorePolicy, endpoint: &Endpoint) -> TcpStore {
        TcpStore::connect(TcpStoreOptions {
            timeout: DEADLINE,
            ..policy.client(&endpoint.host, endpoint.port)
        })
        .unwrap()
    }

    #[test]
    fn a_new_node_hears_at_the_endpoint_where_the_coordinator_is() {
        let (endpoint, policy) = (endpoint(), StorePolicy::default());
        let mut redirect = Redirect::new(endpoint.clone(), policy.clone());
        for coordinator in [coordinator(), coordinator()] {
            redirect.members_changed(&[coordinator.clone(), "127.0.0.1:1".to_owned()]);
            let _client = client(&policy, &endpoint);
            let mut search = Search::of_open_group(endpoint.clone(), &[]);
            let found = search.find(&policy.credentials, DEADLINE);
            let Err(why) = found else {
                panic!("no coordinator listens at {coordinator}")
            };
            let said = format!("{endpoint}: names {coordinator}");
            assert!(why.contains(&said), "{why}");
            assert!(search.endpoints().contains(&coordinator));
        }
    }

    #[test]
    fn the_endpoint_is_free_for_a_member() {
        let (endpoint, policy) = (endpoint(), StorePolicy::default());
        let mut redirect = Redirect::new(endpoint.clone(), policy.clone());
        redirect.members_changed(&[coordinator()]);
        let _client = client(&policy, &endpoint);
        redirect.members_changed(&[coordinator(), endpoint.to_string()]);
        TcpStoreServer::listen(Some(&endpoint.host), endpoint.port).unwrap();
    }

    #[test]
    fn it_waits_for_the_end_of_the_process_at_the_endpoint() {
        let (endpoint, policy) = (endpoint(), StorePolicy::default());
        let other = TcpStoreServer::listen(Some(&endpoint.host), endpoint.port).unwrap();
        let mut redirect = Redirect::new(endpoint.clone(), policy.clone());
        redirect.members_changed(&[coordinator()]);
        drop::<Vec<TcpListener>>(other);
        let _client = client(&policy, &endpoint);
        redirect.stop();
        TcpStoreServer::listen(Some(&endpoint.host), endpoint.port).unwrap();
    }

    #[test]
    fn it_is_no_store() {
        let (endpoint, policy) = (endpoint(), StorePolicy::default());
        let mut redirect = Redirect::new(endpoint.clone(), policy.clone());
        redirect.members_changed(&[coordinator()]);
        let store = client(&policy, &endpoint);
        assert!(store.compare_set("key", b"", b"value").is_err());
    }
}
