//! The endpoint of a group whose members are all elsewhere: an agent on its machine answers there with the place of the
//! coordinator, so that a new node which has only the endpoint finds the group.
//!
//! It does not vote there. Voters call the endpoint as long as no member has it; they are accepted, and get no answer.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};
use rdzv_lock::Mutex;
use rdzv_rendezvous_proto::coordinator::PREFIX;
use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_VOTER};
use rdzv_store::{StoreError, StorePolicy, TcpStoreServer};
use rdzv_store_proto::server::{Extension, Reach};
use rdzv_voters::{FRAME_BOUND, Frame};
use tracing::{info, warn};

use crate::bind::loopback;

/// Time between two attempts to listen at the endpoint while another process does: one that is about to end, perhaps.
const AGAIN: Duration = Duration::from_secs(1);

/// Answers at the endpoint while no member of the group is there.
#[derive(Debug)]
pub struct Redirect {
    endpoint: Endpoint,
    policy: StorePolicy,
    coordinator: Coordinator,
    listening: Option<Listening>,
}

impl Redirect {
    /// For the endpoint of a job, which is this machine.
    pub fn new(endpoint: Endpoint, policy: StorePolicy) -> Self {
        Self {
            endpoint,
            policy,
            coordinator: Coordinator::default(),
            listening: None,
        }
    }

    /// These are the members of the group from here on, the coordinator first.
    pub fn members_changed(&mut self, members: &[String]) {
        let elsewhere = members
            .first()
            .filter(|_| !members.contains(&self.endpoint.to_string()));
        let Some(coordinator) = elsewhere else {
            return self.stop();
        };
        coordinator.clone_into(&mut self.coordinator.0.lock());
        if self.listening.is_none() {
            match Listening::start(&self.endpoint, &self.policy, &self.coordinator) {
                Ok(listening) => self.listening = Some(listening),
                Err(error) => warn!("new nodes get no answer at {}: {error}", self.endpoint),
            }
        }
    }

    /// Leaves the endpoint to another process, or to a voter of this one.
    pub(super) fn stop(&mut self) {
        self.listening = None;
    }
}

/// The place of the coordinator, as this agent was told last. Clones are the same.
#[derive(Debug, Clone, Default)]
struct Coordinator(Arc<Mutex<String>>);

/// The thread that listens, or waits until it can.
#[derive(Debug)]
struct Listening {
    /// The thread ends when this is dropped.
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    fn start(
        endpoint: &Endpoint,
        policy: &StorePolicy,
        coordinator: &Coordinator,
    ) -> io::Result<Self> {
        let (ends, ended) = mpsc::channel();
        let (endpoint, policy, coordinator) =
            (endpoint.clone(), policy.clone(), coordinator.clone());
        let thread = std::thread::Builder::new()
            .name("rdzv-redirect".to_owned())
            .spawn(move || listen(&endpoint, &policy, &coordinator, &ended))?;
        Ok(Self {
            ends: Some(ends),
            thread: Some(thread),
        })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to return, and has said what went wrong.
            let _ = thread.join();
        }
    }
}

fn listen(
    endpoint: &Endpoint,
    policy: &StorePolicy,
    coordinator: &Coordinator,
    ended: &Receiver<()>,
) {
    loop {
        match serve(endpoint, policy, coordinator) {
            Ok(_server) => {
                info!(
                    "no member of the group is at {endpoint} any more; this node tells new ones there where the \
                     coordinator is"
                );
                // Nothing is sent: it returns when the other side is dropped.
                let _ = ended.recv();
                return;
            }
            Err(StoreError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
            }
            Err(error) => return warn!("new nodes get no answer at {endpoint}: {error}"),
        }
        // Nobody tells when a port is free.
        if ended.recv_timeout(AGAIN) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn serve(
    endpoint: &Endpoint,
    policy: &StorePolicy,
    coordinator: &Coordinator,
) -> Result<TcpStoreServer, StoreError> {
    let mut server = policy.server(loopback(&endpoint.host), endpoint.port);
    server.limits.max_extension_bytes = FRAME_BOUND;
    // An agent of torchrun that takes it for its store ends at once, and does not wait for others who never come.
    server.limits.max_keys = 0;
    server.extension = Some(Box::new(Answers(coordinator.clone())));
    TcpStoreServer::start(server)
}

/// Answers as a voter does that is not the coordinator.
#[derive(Debug)]
struct Answers(Coordinator);

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
        match Frame::read(opcode, payload) {
            Ok(Frame::WhoCoordinates) => {
                let elsewhere = Frame::Elsewhere {
                    cluster: 0,
                    epoch: 0,
                    term: 0,
                    address: self.0.0.lock().clone(),
                };
                let mut frame = Vec::new();
                elsewhere.write(&mut frame);
                reach.send(from, &frame);
            }
            // A voter calls.
            Ok(_) => {}
            Err(_) => reach.dismiss(from, "the coordinator is elsewhere"),
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

    use super::super::Search;
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn endpoint() -> Endpoint {
        Endpoint {
            host: "127.0.0.1".to_owned(),
            port: free_port(),
        }
    }

    /// Where nobody listens.
    fn coordinator() -> String {
        format!("127.0.0.1:{}", free_port())
    }

    /// A store client, as soon as somebody listens at the endpoint.
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
            let found = search.find(&policy.credentials, DEADLINE, || false);
            let Err(why) = found else {
                panic!("nobody is at {coordinator}")
            };
            let said = format!("{endpoint}: names {coordinator}");
            assert!(why.contains(&said), "{why}");
            assert!(search.places().contains(&coordinator));
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
    fn it_waits_until_the_process_at_the_endpoint_has_ended() {
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
