//! The memory limit of the stores that an agent hosts.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

#[allow(dead_code, reason = "each program uses a part of it")]
mod support;

use std::time::Duration;

use rdzv_rendezvous::{RendezvousBackend, RendezvousInfo};
use rdzv_store::{Store, TcpStore, TcpStoreOptions};
use rdzv_testing::free_port;

/// Agent that is alone in its run, and hosts the stores of agents and workers.
fn hosting(port: u16, config: &str) -> (Box<dyn RendezvousBackend>, RendezvousInfo) {
    let config = format!("is_host=true{config}");
    let endpoint = format!("127.0.0.1:{port}");
    let mut node = support::node("c10d", &endpoint, "run", (1, 1), &config);
    let info = node.join(&support::member()).unwrap();
    (node, info)
}

/// `true` if the store at a port accepts values of 6 MiB in total.
fn takes_six_mebibytes(port: u16) -> bool {
    let store = TcpStore::connect(TcpStoreOptions {
        wait_for_workers: false,
        timeout: Duration::from_secs(20),
        ..TcpStoreOptions::new("127.0.0.1", port)
    })
    .unwrap();
    let keys = ["one", "two", "three"];
    // A refusal closes the connection, which the next request notices.
    let all = keys
        .iter()
        .try_for_each(|key| store.set(key, &[7; 2 << 20]));
    all.and_then(|()| store.check(&keys)).unwrap_or(false)
}

#[test]
fn both_stores_of_an_agent_have_the_memory_that_was_asked_for() {
    for (config, takes) in [("", true), (",store_max_memory=4MiB", false)] {
        let port = free_port();
        let (node, info) = hosting(port, config);
        assert_ne!(info.master_port, port);
        assert_eq!(takes_six_mebibytes(port), takes, "endpoint {config:?}");
        let workers = takes_six_mebibytes(info.master_port);
        assert_eq!(workers, takes, "workers' store {config:?}");
        drop((node, info));
    }
}
