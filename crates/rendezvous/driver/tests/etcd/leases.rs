//! Lifetime of a node's lease.

use std::time::{Duration, Instant};

use rdzv_rendezvous::dynamic::SharedState;
use rdzv_rendezvous::etcd::EtcdState;

use crate::{Notices, node, open, shared_run};

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_node_that_ends_is_gone_at_once() {
    let (server, run) = shared_run();
    let mut options = server.options();
    options.lease_time_to_live = Duration::from_secs(60);
    let mut one = EtcdState::open(&options, &run).unwrap();
    let mut other = open(&server, &run);
    let notices = Notices::of(&mut other);
    one.announce(Some(&node(2))).unwrap();
    let started = Instant::now();
    drop(one);
    assert_eq!(notices.gone(), [node(2)]);
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_node_that_leaves_or_comes_back_is_not_gone() {
    let (server, run) = shared_run();
    let (mut one, mut other) = (open(&server, &run), open(&server, &run));
    let notices = Notices::of(&mut other);
    one.announce(Some(&node(1))).unwrap();
    one.announce(Some(&node(1))).unwrap();
    one.announce(None).unwrap();
    one.announce(Some(&node(1))).unwrap();
    notices.silence(Duration::from_millis(500));
    drop(one);
    assert_eq!(notices.gone(), [node(1)], "and then it ends");
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_living_node_is_not_gone_and_nobody_is_notified_of_his_own_end() {
    let (server, run) = shared_run();
    let mut options = server.options();
    options.lease_time_to_live = Duration::from_secs(6);
    let mut one = EtcdState::open(&options, &run).unwrap();
    one.announce(Some(&node(1))).unwrap();
    let mut other = open(&server, &run);
    let notices = Notices::of(&mut other);
    let own = Notices::of(&mut one);
    notices.silence(Duration::from_secs(14));
    let mut twin = open(&server, &run);
    let twins = Notices::of(&mut twin);
    drop(one);
    assert_eq!(twins.gone(), [node(1)]);
    assert!(own.0.recv().is_err(), "the node received a notice");
}
