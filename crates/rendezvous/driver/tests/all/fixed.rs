//! Static rendezvous: joins, and the errors for missing or duplicate nodes.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{
    BackendRegistry, RendezvousError, RendezvousParameters, StaticParameters, StaticRendezvous,
};
use rdzv_store::{Store, StorePolicy, TcpStore, TcpStoreOptions};
use rdzv_store_proto::prefix::join;
use rdzv_testing::free_port;

use crate::support::member;

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(30);

fn node(port: u16, node_rank: u32, nodes: u32, timeout: Duration) -> StaticRendezvous {
    StaticRendezvous::new(StaticParameters {
        endpoint: Endpoint {
            host: "127.0.0.1".to_owned(),
            port,
        },
        node_rank: GroupRank(node_rank),
        nodes,
        timeout,
        run_id: RunId::new("run"),
        policy: StorePolicy::default(),
    })
}

#[test]
fn one_node_meets_itself_on_a_free_port() {
    let mut alone = node(0, 0, 1, LONG);
    let info = alone.join().unwrap();
    assert_eq!((info.rank, info.world_size), (GroupRank(0), 1));
    assert_eq!(info.master_addr, "127.0.0.1");
    let server = info.server.unwrap();
    assert_eq!(info.master_port, server.port());
    assert!(server.local_addr().ip().is_loopback());
    info.store.set("k", b"v").unwrap();
    let again = alone.join().unwrap();
    assert_eq!(again.store.get("k").unwrap(), "v", "the store is kept");
}

#[test]
fn node_0_hosts_and_waits_and_agents_have_their_own_keys() {
    let port = free_port();
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| node(port, 0, 2, LONG).join().unwrap());
        let second = scope.spawn(|| node(port, 1, 2, LONG).join().unwrap());
        (first.join().unwrap(), second.join().unwrap())
    });
    assert!(first.server.is_some() && second.server.is_none());
    assert_eq!(second.rank, GroupRank(1));
    assert_eq!(second.master_port, port);
    first.store.set("key", b"value").unwrap();
    assert_eq!(second.store.get("key").unwrap(), "value");
    let workers = TcpStore::connect(TcpStoreOptions::new("127.0.0.1", port));
    assert_eq!(workers.unwrap().get("run/key").unwrap(), "value");
}

#[test]
fn node_0_says_who_did_not_come() {
    let port = free_port();
    let error = node(port, 0, 2, SHORT).join().unwrap_err();
    assert!(
        matches!(
            error,
            RendezvousError::NodesMissing {
                joined: 1,
                expected: 2,
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("1/2 clients joined"), "{text}");
    assert!(text.contains("--nnodes"), "{text}");
}

#[test]
fn another_node_says_that_node_0_is_not_there() {
    let port = free_port();
    let error = node(port, 1, 2, SHORT).join().unwrap_err();
    assert!(
        matches!(error, RendezvousError::NoNodeZero { .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.starts_with("node 1 of 2 cannot join node 0"), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains("--node-rank 0"), "{text}");
}

#[test]
fn a_second_node_0_learns_that_the_address_is_taken() {
    // Another listener holds the port, as another agent's process would.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let error = node(port, 0, 2, SHORT).join().unwrap_err();
    assert!(
        matches!(error, RendezvousError::AddressInUse { .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("Address already in use"), "{text}");
    assert!(text.contains("--node-rank"), "{text}");
}

/// A node 0 on another host finds the store of another node 0 at the endpoint.
#[test]
fn a_second_node_0_elsewhere_is_found_out() {
    let port = free_port();
    let first = node(port, 0, 1, LONG).join().unwrap();
    let error = node(port, 0, 1, LONG).join().unwrap_err().to_string();
    assert!(
        error.contains("two agents of run run have node rank 0"),
        "{error}"
    );
    drop(first);
}

/// The other node 0 has claimed the rank before the host does.
#[test]
fn a_host_whose_rank_is_taken_lets_the_other_node_read_why() {
    let port = free_port();
    let options = || TcpStoreOptions {
        timeout: LONG,
        ..TcpStoreOptions::new("127.0.0.1", port)
    };
    thread::scope(|scope| {
        let host = scope.spawn(|| node(port, 0, 2, LONG).join().unwrap_err().to_string());
        let other = TcpStore::connect(options()).unwrap();
        other
            .set(&join("run", "rdzv/nodes/0"), b"10.0.0.2_7_0")
            .unwrap();
        let joins = TcpStoreOptions {
            world_size: Some(2),
            ..options()
        };
        let _joined = TcpStore::connect(joins).unwrap();
        other.get(&join("run", "rdzv/news/1")).unwrap();
        // The other node opens this connection only after its join, here a while later.
        thread::sleep(SHORT);
        let reads = TcpStore::connect(options()).unwrap();
        let notice = reads.get(&join("run", "rdzv/news/0")).unwrap();
        let said = host.join().unwrap();
        assert!(said.contains("10.0.0.2_7_0 and "), "{said}");
        let notice = String::from_utf8(notice.to_vec()).unwrap();
        assert!(notice.ends_with(&said), "{notice}");
    });
}

/// Any client of the store can write the name of a node.
#[test]
fn the_name_of_another_node_is_escaped() {
    let port = free_port();
    let first = node(port, 0, 1, LONG).join().unwrap();
    let key = join("run", "rdzv/nodes/1");
    let hostile = "x\u{1b}[2J\nrdzv: first failure: forged";
    let client = TcpStore::connect(TcpStoreOptions::new("127.0.0.1", port)).unwrap();
    client.set(&key, hostile.as_bytes()).unwrap();
    let error = node(port, 1, 2, LONG).join().unwrap_err().to_string();
    assert!(error.contains("x\\u{1b}[2J\\nrdzv: first"), "{error:?}");
    assert!(!error.contains(char::is_control), "{error:?}");
    drop(first);
}

#[test]
fn a_rank_beyond_the_number_of_nodes_is_refused() {
    let port = free_port();
    let error = node(port, 2, 2, SHORT).join().unwrap_err().to_string();
    assert!(
        error.contains("must be less than the number of nodes"),
        "{error}"
    );
}

#[test]
fn a_timed_out_rendezvous_can_be_tried_again() {
    let port = free_port();
    let mut first = node(port, 0, 2, SHORT);
    first.join().unwrap_err();
    drop(first);
    thread::scope(|scope| {
        let first = scope.spawn(|| node(port, 0, 2, LONG).join().unwrap());
        node(port, 1, 2, LONG).join().unwrap();
        first.join().unwrap();
    });
}

#[test]
fn general_parameters_are_checked_with_the_texts_of_the_reference() {
    let make = |endpoint: &str, config: &[(&str, &str)]| {
        let config: BTreeMap<String, String> = config
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        let parameters =
            RendezvousParameters::new("static", endpoint, "run", 1, 1, config).unwrap();
        BackendRegistry::with_defaults().create(&parameters)
    };
    let refused = |endpoint: &str, config: &[(&str, &str)]| match make(endpoint, config) {
        Ok(_) => panic!("{endpoint} {config:?} was accepted"),
        Err(error) => error.to_string(),
    };
    assert!(refused("h:1", &[]).starts_with("rank is absent in RendezvousParameters."));
    let rank = ("rank", "0");
    assert!(refused(" ", &[rank]).starts_with("endpoint is absent in RendezvousParameters"));
    for endpoint in ["h", "[::1]"] {
        assert_eq!(
            refused(endpoint, &[rank]),
            format!("Port is absent in endpoint: {endpoint}. Try launching with --master-port")
        );
    }
    assert!(refused("h:x", &[rank]).contains("must be an integer between 0 and 65536"));
    assert!(refused("h:1", &[("rank", "x")]).contains("valid integer"));
    let mut backend = make("127.0.0.1:0", &[rank, ("timeout", "30")]).unwrap();
    assert_eq!(backend.run_id().as_str(), "run");
    assert!(backend.shares_store_with_workers());
    assert!(!backend.is_closed().unwrap());
    assert_eq!(backend.num_nodes_waiting().unwrap(), 0);
    let info = backend.join(&member()).unwrap();
    assert!(Arc::clone(&info.store).num_keys().unwrap() >= 1);
    backend.set_closed().unwrap();
    assert!(backend.shutdown());
}
