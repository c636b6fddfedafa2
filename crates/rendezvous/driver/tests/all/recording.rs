//! Events of a rendezvous that is used without an agent.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{
    BackendRegistry, NodeState, RendezvousBackend, RendezvousConfig, RendezvousError,
    RendezvousEvent, RendezvousParameters,
};
use rdzv_testing::free_port;

use crate::support::member;

type Made = Result<Box<dyn RendezvousBackend>, RendezvousError>;

fn node(endpoint: &str, config: &str) -> (Made, Receiver<RendezvousEvent>) {
    let config = RendezvousConfig::parse(config).unwrap();
    let parameters = RendezvousParameters::new("c10d", endpoint, "run", 1, 1, config).unwrap();
    let (sender, events) = channel();
    let recorder = Arc::new(move |event| sender.send(event).unwrap());
    let backends = BackendRegistry::with_defaults();
    (backends.create_recorded(&parameters, recorder), events)
}

fn states(events: &Receiver<RendezvousEvent>) -> Vec<(NodeState, String)> {
    let events = events.try_iter();
    events.map(|event| (event.state, event.message)).collect()
}

fn said(state: NodeState, message: &str) -> (NodeState, String) {
    (state, message.to_owned())
}

#[test]
fn a_node_that_hosts_joins_and_closes() {
    let (made, events) = node(&format!("localhost:{}", free_port()), "");
    let mut node = made.unwrap();
    node.join(&member()).unwrap();
    let hosts = format!(
        "Process {} hosts the TCP store for the C10d rendezvous backend.",
        std::process::id()
    );
    let joins = "The node joins the next round of the rendezvous 'run'.";
    assert_eq!(events.recv().unwrap().message, joins);
    assert_eq!(
        events.recv().unwrap(),
        RendezvousEvent::new(NodeState::Init, hosts)
    );
    let joined = events.recv().unwrap();
    assert_eq!(
        (joined.state, joined.rank, joined.error),
        (NodeState::Running, Some(GroupRank(0)), None)
    );
    assert!(node.shutdown());
    assert_eq!(
        states(&events),
        [said(
            NodeState::Succeeded,
            "The node has closed the rendezvous 'run'."
        )]
    );
}

#[test]
fn a_node_that_does_not_host_does_not_say_so() {
    let (made, events) = node("", "store_type=file");
    let mut node = made.unwrap();
    node.join(&member()).unwrap();
    node.leave().unwrap();
    let states: Vec<NodeState> = states(&events)
        .into_iter()
        .map(|(state, _)| state)
        .collect();
    assert_eq!(
        states,
        [NodeState::Init, NodeState::Running, NodeState::Succeeded]
    );
}

#[test]
fn a_node_that_never_joined_does_not_leave() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let (made, events) = node(&endpoint, "is_host=0,read_timeout=1");
    let mut node = made.unwrap();
    let error = node.join(&member()).unwrap_err();
    assert_eq!(events.recv().unwrap().state, NodeState::Init);
    let failed = events.recv().unwrap();
    assert_eq!(failed, RendezvousEvent::failed(&error));
    assert!(failed.message.starts_with("RendezvousConnectionError: "));
    node.leave().unwrap();
    assert!(node.shutdown());
    assert_eq!(states(&events), []);
}

#[test]
fn a_node_that_cannot_be_made_has_failed() {
    let (made, events) = node("localhost", "store_type=zeus");
    assert!(made.is_err());
    assert_eq!(
        states(&events),
        [said(
            NodeState::Failed,
            "ValueError: Invalid store type given. Currently only supports file and tcp."
        )]
    );
}
