//! Tests of rdzv's client against the recorded servers.
//!
//! Calls, bytes and results are the same.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rdzv_store::{Store, TcpStore, TcpStoreOptions};
use rdzv_store_proto::wire::request;
use serde_json::{Value, json};

use crate::recorded::exchanges;
use crate::replay::Replay;
use crate::{Outcome, calls};

#[test]
fn one_client_against_the_default_server() {
    assert_eq!(replay("libuv/core"), 71);
}

#[test]
fn two_clients_against_the_default_server() {
    assert_eq!(replay("libuv/two-clients"), 16);
}

#[test]
fn joining_at_the_default_server() {
    assert_eq!(replay("libuv/init"), 3);
}

#[test]
fn one_client_against_the_older_server() {
    assert_eq!(replay("legacy/core"), 61);
}

#[test]
fn two_clients_against_the_older_server() {
    assert_eq!(replay("legacy/two-clients"), 15);
}

#[test]
fn joining_at_the_older_server() {
    assert_eq!(replay("legacy/init"), 3);
}

/// Replays a group; returns the number of equal exchanges.
fn replay(group: &str) -> usize {
    let mut server = Replay::new();
    let mut clients: Vec<Arc<TcpStore>> = Vec::new();
    let mut equal = 0;
    for exchange in exchanges(group) {
        let name = exchange["name"].as_str().unwrap();
        // PyTorch's client itself refuses queues when it knows that the server is the older one.
        // rdzv's client does not know that. It sends the request and reports what a closed
        // connection may mean.
        if name == "queue_push_unsupported" {
            continue;
        }
        let frames = [
            exchange["frames"].as_array().unwrap().clone(),
            examination(name),
        ]
        .concat();
        let port = server.port();
        thread::scope(|scope| {
            let playing = scope.spawn(|| server.play(name, &frames));
            match name {
                "connect" => clients.push(connect(port, None)),
                "connect_two" => clients.extend([connect(port, None), connect(port, None)]),
                "client_world_2" => clients.push(connect(port, Some(2))),
                _ => call(name, &clients, &exchange["client_result"]),
            }
            playing.join().unwrap();
        });
        server.assert_quiet(name);
        equal += 1;
    }
    equal
}

fn connect(port: u16, world_size: Option<u32>) -> Arc<TcpStore> {
    let options = TcpStoreOptions {
        world_size,
        timeout: Duration::from_secs(20),
        ..TcpStoreOptions::new("127.0.0.1", port)
    };
    Arc::new(TcpStore::connect(options).unwrap())
}

/// Makes the calls of an exchange and compares their results.
fn call(name: &str, clients: &[Arc<TcpStore>], recorded: &Value) {
    let assert_same = |outcome: Option<Outcome>, recorded: &Value| {
        let outcome = outcome.unwrap_or_else(|| panic!("{name} is not known"));
        let recorded = recorded.get("returns").unwrap_or(recorded);
        assert!(
            outcome.matches(recorded),
            "{name}: {outcome:?}, recorded: {recorded}"
        );
    };
    if name == "barrier_key_visible" {
        let there = Outcome::of(clients[1].check(&["bar"]));
        assert_same(Some(there), &recorded["check"]);
        assert_same(Some(Outcome::of(clients[1].get("bar"))), &recorded["value"]);
    } else if let [first, second] = clients {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| calls::of_first(name, first));
            assert_same(calls::of_second(name, &**second), &recorded["B"]);
            assert_same(waiting.join().unwrap(), &recorded["A"]);
        });
    } else {
        assert_same(calls::of_first(name, &clients[0]), recorded);
    }
}

/// Returns the frames that rdzv adds to a recorded exchange after a timeout.
/// With them, the client finds missing keys, or leaves a barrier.
fn examination(exchange: &str) -> Vec<Value> {
    let check = |key: &str, answer: &str| {
        let mut request = Vec::new();
        request::check(&mut request, &[key]);
        [frame("c2s", &hex(&request)), frame("s2c", answer)]
    };
    match exchange {
        "wait_timeout_zero" => [check("/nope", "01"), check("/k1", "00")].concat(),
        "multi_get_timeout" => [check("/k1", "00"), check("/nope", "01")].concat(),
        "barrier_timeout" => {
            let mut request = Vec::new();
            request::get(&mut request, b"/b2");
            let mut withdrawn = Vec::new();
            request::add(&mut withdrawn, b"/b2", -1);
            vec![
                frame("c2s", &hex(&request)),
                frame("s2c", "010000000000000031"),
                frame("c2s", &hex(&withdrawn)),
                frame("s2c", "0000000000000000"),
            ]
        }
        _ => vec![],
    }
}

fn frame(direction: &str, hex: &str) -> Value {
    json!({"conn": "A", "dir": direction, "hex": hex})
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
