//! Outages of the server: short ones, long ones, and the loss of its data.

use std::thread;
use std::time::{Duration, Instant};

use rdzv_rendezvous::dynamic::SharedState;
use rdzv_rendezvous::dynamic::shared::Notice;
use rdzv_rendezvous::etcd::EtcdState;

use crate::server::Server;
use crate::{LONG, Notices, new_run, node, open};

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_crash_and_restart_in_the_middle_loses_nothing() {
    let server = Server::start();
    let run = new_run();
    let (mut one, mut other) = (open(&server, &run), open(&server, &run));
    one.announce(Some(&node(1))).unwrap();
    other.announce(Some(&node(2))).unwrap();
    let notices = Notices::of(&mut other);
    let (before, token) = one.set(b"before", None).unwrap().now.unwrap();
    one.notify().unwrap();
    notices.changed();
    let store = one.round_store(0).unwrap();
    store.set("key", b"value").unwrap();
    store.add("counter", 41).unwrap();

    server.crash();
    thread::scope(|scope| {
        // Requests that begin during the outage are answered after it.
        let reading = scope.spawn(|| other.get().unwrap());
        let adding = scope.spawn(|| store.add("counter", 1).unwrap());
        let waiting = scope.spawn(|| store.wait(&["later"], Some(LONG)).unwrap());
        let getting = store.try_clone().unwrap();
        server.go_on();
        assert_eq!(reading.join().unwrap().unwrap(), (before, token.clone()));
        assert_eq!(adding.join().unwrap(), 42);
        getting.set("later", b"").unwrap();
        waiting.join().unwrap();
    });
    assert_eq!(store.get("key").unwrap(), "value");
    assert!(one.set(b"after", Some(&token)).unwrap().won);
    one.notify().unwrap();
    notices.changed();
    assert_eq!(other.get().unwrap().unwrap().0, "after");

    // The leases have survived the outage, and still end with their nodes.
    drop(one);
    assert_eq!(notices.gone(), [node(1)]);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_wait_goes_on_over_a_restart() {
    let server = Server::start();
    let state = open(&server, &new_run());
    let store = state.round_store(0).unwrap();
    let other = state.round_store(0).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            store.add("waiting", 1).unwrap();
            store.wait(&["late"], Some(LONG))
        });
        other.wait(&["waiting"], Some(LONG)).unwrap();
        server.crash();
        server.go_on();
        other.set("late", b"").unwrap();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_waiting_call_can_be_ended_from_another_thread() {
    let server = Server::shared();
    let store = open(&server, &new_run()).round_store(0).unwrap();
    let breaker = store.connection().and_then(|it| it.breaker()).unwrap();
    let other = store.try_clone().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait(&["late"], Some(LONG)));
        other.set("begun", b"").unwrap();
        breaker();
        assert!(waiting.join().unwrap().is_err());
    });
    other.set("late", b"").unwrap();
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_server_away_for_too_long_is_named() {
    let server = Server::start();
    let mut options = server.options();
    options.read_timeout = Duration::from_secs(1);
    let mut state = EtcdState::open(&options, &new_run()).unwrap();
    let notices = Notices::of(&mut state);
    let store = state.round_store(0).unwrap();
    server.crash();
    let started = Instant::now();
    let error = state.set(b"x", None).unwrap_err().to_string();
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    let endpoint = state.endpoint();
    assert!(
        error.contains(&endpoint) && error.contains("read_timeout"),
        "{error}"
    );
    let error = store.set("key", b"").unwrap_err().to_string();
    assert!(
        error.contains("keys/key") && error.contains(&endpoint),
        "{error}"
    );
    // The end of the watch causes a read of the state; after that, the server counts as lost.
    notices.changed();
    match notices.0.recv_timeout(LONG).unwrap() {
        Notice::Lost(error) => assert!(error.to_string().contains(&endpoint), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_server_without_its_memory_is_noticed() {
    let server = Server::start();
    let run = new_run();
    let (mut one, mut other) = (open(&server, &run), open(&server, &run));
    one.announce(Some(&node(1))).unwrap();
    let notices = Notices::of(&mut other);
    let mut token = None;
    for number in 0..5_u8 {
        let written = one.set(&[number], token.as_ref()).unwrap();
        token = written.now.map(|(_, token)| token);
        one.notify().unwrap();
        notices.changed();
    }
    server.crash();
    server.forget();
    server.go_on();
    assert_eq!(notices.gone(), [node(1)], "its key is not there");
    assert_eq!(other.get().unwrap(), None);
    // The old token is invalid, and a new state is possible.
    let lost = one.set(b"x", token.as_ref()).unwrap();
    assert_eq!((lost.won, lost.now), (false, None));
    assert!(one.set(b"new", None).unwrap().won);
    one.notify().unwrap();
    notices.changed();
    assert_eq!(other.get().unwrap().unwrap().0, "new");
}
