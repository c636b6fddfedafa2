//! Formation of rounds.

use std::time::{Duration, Instant};

use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{JoiningAgent, RendezvousError};
use rdzv_store::{Store as _, TcpStore, TcpStoreOptions};

use crate::backends::RunBackend;
use crate::behaviours;
use crate::nodes::{LONG, Node, form, nodes};
use crate::support::member;

behaviours!(
    nodes_that_come_together_form_a_round,
    workers_meet_at_one_empty_store,
    agents_share_a_store_that_is_the_rounds_own,
    enough_nodes_wait_for_the_last_call_only,
    too_few_nodes_are_counted_and_named,
    a_worker_that_hosts_the_store_gets_a_port,
    a_node_that_was_not_needed_in_time_can_try_again,
);

fn nodes_that_come_together_form_a_round(backend: &dyn RunBackend) {
    let mut three = nodes(backend, 3, (3, 3), "");
    let infos = form(&mut three);
    assert_eq!(infos[0].round, 0);
    assert!(!three[0].backend.is_closed().unwrap());
    assert_eq!(three[0].backend.num_nodes_waiting().unwrap(), 0);
    assert!(three.iter().all(|node| node.heard().is_empty()));
}

fn workers_meet_at_one_empty_store(backend: &dyn RunBackend) {
    let mut two = nodes(backend, 2, (2, 2), "");
    for _ in 0..3 {
        let infos = form(&mut two);
        let at = &infos[1];
        let workers =
            TcpStore::connect(TcpStoreOptions::new(&at.master_addr, at.master_port)).unwrap();
        assert!(
            !workers.check(&["of-a-worker"]).unwrap(),
            "what is left of the round before"
        );
        workers.set("of-a-worker", b"x").unwrap();
    }
}

fn agents_share_a_store_that_is_the_rounds_own(backend: &dyn RunBackend) {
    let mut two = nodes(backend, 2, (2, 2), "");
    let first = form(&mut two);
    first[0].store.set("key", b"value").unwrap();
    assert_eq!(first[1].store.get("key").unwrap(), "value");
    let second = form(&mut two);
    assert!(second[0].round > first[0].round);
    assert!(!second[1].store.check(&["key"]).unwrap());
}

fn enough_nodes_wait_for_the_last_call_only(backend: &dyn RunBackend) {
    let started = Instant::now();
    let mut alone = nodes(backend, 1, (1, 2), "last_call_timeout=1");
    let infos = form(&mut alone);
    assert_eq!(infos[0].rank, GroupRank(0));
    assert!((Duration::from_secs(1)..LONG).contains(&started.elapsed()));
}

fn too_few_nodes_are_counted_and_named(backend: &dyn RunBackend) {
    let started = Instant::now();
    let mut node = Node::new(backend, (2, 2), "join_timeout=5");
    let error = node.join().unwrap_err();
    assert!(started.elapsed() < LONG / 2);
    assert!(
        matches!(&error, RendezvousError::JoinTimeout { joined, .. } if joined.len() == 1),
        "{error}"
    );
    let text = error.to_string();
    let process = format!("_{}_", std::process::id());
    for part in [
        "run 'run",
        "had 1 of at least 2 nodes after ",
        &process,
        "join_timeout",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

fn a_worker_that_hosts_the_store_gets_a_port(backend: &dyn RunBackend) {
    let mut node = Node::new(backend, (1, 1), "");
    let info = node
        .backend
        .join(&JoiningAgent {
            share_store: false,
            ..member()
        })
        .unwrap();
    assert!(info.server.is_none());
    let reserved = info.reserved_port.unwrap();
    assert_eq!(reserved.local_addr().unwrap().port(), info.master_port);
}

fn a_node_that_was_not_needed_in_time_can_try_again(backend: &dyn RunBackend) {
    let mut early = Node::new(backend, (2, 2), "join_timeout=1");
    early.join().unwrap_err();
    let mut late = Node::new(backend, (2, 2), "");
    form([&mut early, &mut late]);
}
