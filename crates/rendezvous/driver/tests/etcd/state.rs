//! Reads, compare-and-set writes, and notices.

use std::net::IpAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_rendezvous::dynamic::{SharedState, StateToken};
use rdzv_rendezvous::etcd::{EtcdOptions, EtcdState};

use crate::server::Server;
use crate::{Notices, new_run, open, shared_run, support};

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn the_first_write_wins_and_the_second_sees_it() {
    let (server, run) = shared_run();
    let (mut one, mut other) = (open(&server, &run), open(&server, &run));
    assert_eq!(one.get().unwrap(), None);
    let first = one.set(b"\0first\xff", None).unwrap();
    assert!(first.won);
    let second = other.set(b"second", None).unwrap();
    assert!(!second.won);
    assert_eq!(second.now, first.now);
    assert_eq!(other.get().unwrap(), first.now);
    assert_eq!(first.now.unwrap().0, &b"\0first\xff"[..]);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_write_with_an_old_token_loses_even_if_the_bytes_are_the_same() {
    let (server, run) = shared_run();
    let mut state = open(&server, &run);
    let (_, old) = state.set(b"a", None).unwrap().now.unwrap();
    let (_, new) = state.set(b"b", Some(&old)).unwrap().now.unwrap();
    let lost = state.set(b"b", Some(&old)).unwrap();
    assert!(!lost.won);
    assert_eq!(lost.now.unwrap().1, new);
    let foreign = StateToken(b"no token of etcd".to_vec());
    assert!(!state.set(b"c", Some(&foreign)).unwrap().won);
    assert!(state.set(b"c", Some(&new)).unwrap().won);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn one_writer_wins_each_version() {
    let (server, run) = shared_run();
    let start = Barrier::new(6);
    let wins: usize = thread::scope(|scope| {
        let writers: Vec<_> = (0..6_u8)
            .map(|writer| {
                let (mut state, start) = (open(&server, &run), &start);
                scope.spawn(move || {
                    start.wait();
                    usize::from(state.set(&[writer], None).unwrap().won)
                })
            })
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .sum()
    });
    assert_eq!(wins, 1);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn runs_do_not_meet() {
    let server = Server::shared();
    let (mut one, mut other) = (open(&server, &new_run()), open(&server, &new_run()));
    let notices = Notices::of(&mut other);
    assert!(one.set(b"one", None).unwrap().won);
    one.notify().unwrap();
    assert_eq!(other.get().unwrap(), None);
    notices.silence(Duration::from_millis(200));
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_change_is_notified_at_once() {
    let (server, run) = shared_run();
    let (mut writer, mut reader) = (open(&server, &run), open(&server, &run));
    let notices = Notices::of(&mut reader);
    let mut token = None;
    for number in 0..5_u8 {
        let written = writer.set(&[number], token.as_ref()).unwrap();
        assert!(written.won);
        token = written.now.map(|(_, token)| token);
        let started = Instant::now();
        writer.notify().unwrap();
        notices.changed();
        assert!(
            started.elapsed() < Duration::from_secs(1),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(reader.get().unwrap().unwrap().0, &[number][..]);
    }
    notices.silence(Duration::from_millis(100));
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_watch_ends_with_the_state_and_a_new_one_replaces_the_old() {
    let (server, run) = shared_run();
    let (mut writer, mut reader) = (open(&server, &run), open(&server, &run));
    let old = Notices::of(&mut reader);
    let new = Notices::of(&mut reader);
    assert!(old.0.recv().is_err(), "the old observer must not exist");
    writer.notify().unwrap();
    new.changed();
    let started = Instant::now();
    drop(reader);
    assert!(new.0.recv().is_err());
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn stores_of_different_rounds_do_not_meet_and_old_ones_are_cleared() {
    let (server, run) = shared_run();
    let (one, other) = (open(&server, &run), open(&server, &run));
    let zero = one.round_store(0).unwrap();
    zero.set("key", b"zero").unwrap();
    let first = other.round_store(1).unwrap();
    assert!(!first.check(&["key"]).unwrap());
    first.set("key", b"one").unwrap();
    assert_eq!(
        zero.get("key").unwrap(),
        "zero",
        "a straggler may still read"
    );
    let second = one.round_store(2).unwrap();
    assert!(!zero.check(&["key"]).unwrap());
    assert_eq!(first.get("key").unwrap(), "one");
    second.add("counter", 1).unwrap();
    drop((one, other));
    assert_eq!(
        second.add("counter", 1).unwrap(),
        2,
        "a store outlives the state"
    );
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn the_own_address_and_the_endpoint_are_known() {
    let server = Server::shared();
    let state = open(&server, &new_run());
    let own: IpAddr = state.local_address().unwrap();
    assert!(own.is_loopback(), "{own}");
    assert_eq!(
        state.endpoint(),
        format!("the etcd endpoint {}", server.endpoint())
    );
}

#[test]
fn nobody_there_is_said_with_address_time_and_remedy() {
    let port = rdzv_testing::free_port();
    let mut options = EtcdOptions::new(Endpoint {
        host: "127.0.0.1".to_owned(),
        port,
    });
    options.read_timeout = Duration::from_millis(300);
    let started = Instant::now();
    let mut state = EtcdState::open(&options, &new_run()).unwrap();
    let error = state.get().unwrap_err().to_string();
    assert!(started.elapsed() >= options.read_timeout);
    for part in [
        format!("etcd endpoint 127.0.0.1:{port} after "),
        "connection refused".to_owned(),
        "/state: no answer".to_owned(),
        "--rdzv-endpoint".to_owned(),
    ] {
        assert!(error.contains(&part), "{part}: {error}");
    }
}

#[test]
fn something_else_is_said_at_once() {
    let other = support::server();
    let mut options = EtcdOptions::new(Endpoint {
        host: "127.0.0.1".to_owned(),
        port: other.port(),
    });
    options.read_timeout = Duration::from_secs(20);
    let started = Instant::now();
    let mut state = EtcdState::open(&options, &new_run()).unwrap();
    let error = state.get().unwrap_err().to_string();
    assert!(
        error.contains(&format!("etcd endpoint 127.0.0.1:{}", other.port())),
        "{error}"
    );
    assert!(error.contains("is not an etcd server"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5), "{error}");
    assert!(error.contains("--rdzv-endpoint"), "{error}");
}
