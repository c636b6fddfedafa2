//! The memory limit of the stores that an agent hosts.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::time::Duration;

use rdzv_rendezvous::{
    BackendRegistry, Member, RendezvousBackend, RendezvousConfig, RendezvousInfo,
    RendezvousParameters,
};
use rdzv_store::{Store, TcpStore, TcpStoreOptions};
use rdzv_testing::free_port;

/// An agent that is alone in its run, hosts the store at the endpoint, and another one for its workers.
fn hosting(port: u16, config: &str) -> (Box<dyn RendezvousBackend>, RendezvousInfo) {
    let config = RendezvousConfig::parse(&format!("is_host=true{config}")).unwrap();
    let endpoint = format!("127.0.0.1:{port}");
    let parameters = RendezvousParameters::new("c10d", endpoint, "run", 1, 1, config).unwrap();
    let mut node = BackendRegistry::with_defaults()
        .create(&parameters)
        .unwrap();
    let member = Member {
        role: "default".to_owned(),
        local_world_size: 1,
        share_store: true,
        master_port: None,
    };
    let info = node.join(&member).unwrap();
    (node, info)
}

/// Whether the store at a port takes values of 6 MiB together.
fn takes_six_mebibytes(port: u16) -> bool {
    let store = TcpStore::connect(TcpStoreOptions {
        wait_for_workers: false,
        timeout: Duration::from_secs(20),
        ..TcpStoreOptions::new("127.0.0.1", port)
    })
    .unwrap();
    let keys = ["one", "two", "three"];
    // A refusal closes the connection, which the next request finds out.
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
