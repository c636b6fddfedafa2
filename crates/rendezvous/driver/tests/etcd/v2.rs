//! The v2 API: the keys of Python's agents, and the same promises as with v3.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::ident::RunId;
use rdzv_core::time::Wall;
use rdzv_rendezvous::dynamic::shared::Notice;
use rdzv_rendezvous::dynamic::{SharedState, Token};
use rdzv_rendezvous::etcd::v2::{EtcdV2State, open_store};
use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::codec::{encode, to_value};
use rdzv_store::{Store, StoreError};

use crate::server::Server;
use crate::{LONG, Notices, new_run, node};

fn open(server: &Server, run_id: &RunId) -> EtcdV2State {
    EtcdV2State::open(&server.options(), run_id).unwrap()
}

/// What etcd says about a path, as any client would be told.
fn raw(server: &Server, path: &str) -> serde_json::Value {
    let url = format!("http://{}{path}", server.endpoint());
    let body = ureq::get(url).call().unwrap().into_body().read_to_vec();
    serde_json::from_slice(&body.unwrap()).unwrap()
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn the_state_is_where_and_how_python_keeps_it() {
    let server = Server::shared();
    let run = new_run();
    let state = RendezvousState {
        round: 3,
        ..RendezvousState::default()
    };
    let mut ours = open(&server, &run);
    assert!(ours.set(&encode(&state), None).unwrap().won);
    let name = run.as_str().replace(' ', "%20");
    let found = raw(
        &server,
        &format!("/v2/keys/torch/elastic/rendezvous/{name}"),
    );
    let node = &found["node"];
    assert_eq!(node["value"].as_str().unwrap().as_bytes(), to_value(&state));
    let left = node["ttl"].as_u64().unwrap();
    assert!((7100..=7200).contains(&left), "{left}");
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn the_store_of_a_round_is_where_and_how_python_keeps_it() {
    let server = Server::shared();
    let run = RunId::new(format!("r{:016x}", fastrand::u64(..)));
    let store = open(&server, &run).round_store(7).unwrap();
    // A key whose base64 has a slash in it.
    store.set("rank/00?", b"\0\xff").unwrap();
    assert_eq!(store.get("rank/00?").unwrap(), &b"\0\xff"[..]);
    store.set("rank/0", b"value").unwrap();
    let same = open_store(&server.options(), None).unwrap();
    let key = format!("torch.rendezvous.{run}.7/rank/0");
    assert_eq!(same.get(&key).unwrap(), "value");
    let names = same.list_keys().unwrap();
    assert!(names.contains(&key), "{names:?}");

    let found = raw(&server, "/v2/keys/torch/elastic/store");
    let nodes = found["node"]["nodes"].as_array().unwrap();
    let base64 = |text: &str| {
        let value = rdzv_rendezvous_proto::codec::text::encode(text.as_bytes());
        String::from_utf8(value).unwrap()
    };
    let name = format!("/torch/elastic/store/{}", base64(&key));
    let node = nodes.iter().find(|node| node["key"] == name).unwrap();
    assert_eq!(node["value"], base64("value"));
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_write_wins_only_over_what_was_read() {
    let server = Server::shared();
    let run = new_run();
    let (mut one, mut other) = (open(&server, &run), open(&server, &run));
    assert_eq!(one.get().unwrap(), None);
    let first = one.set(b"\0first\xff", None).unwrap();
    assert!(first.won);
    let second = other.set(b"second", None).unwrap();
    assert!(!second.won);
    assert_eq!(second.now, first.now);
    assert_eq!(other.get().unwrap(), first.now);

    let (_, old) = first.now.unwrap();
    let (_, new) = one.set(b"b", Some(&old)).unwrap().now.unwrap();
    let lost = other.set(b"b", Some(&old)).unwrap();
    assert!(!lost.won, "though the bytes are the same");
    assert_eq!(lost.now.unwrap().1, new);
    let foreign = Token(b"no token of etcd".to_vec());
    assert!(!other.set(b"c", Some(&foreign)).unwrap().won);
    assert!(other.set(b"c", Some(&new)).unwrap().won);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn one_writer_wins_each_version() {
    let server = Server::shared();
    let run = new_run();
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
        let wins = writers.into_iter().map(|writer| writer.join().unwrap());
        wins.sum()
    });
    assert_eq!(wins, 1);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn every_write_is_notified_at_once() {
    let server = Server::shared();
    let run = new_run();
    let (mut writer, mut reader) = (open(&server, &run), open(&server, &run));
    let notices = Notices::of(&mut reader);
    let mut token = None;
    for number in 0..5_u8 {
        let written = writer.set(&[number], token.as_ref()).unwrap();
        assert!(written.won);
        token = written.now.map(|(_, token)| token);
        let started = Instant::now();
        notices.changed();
        assert!(started.elapsed() < Duration::from_secs(1));
        assert_eq!(reader.get().unwrap().unwrap().0, &[number][..]);
    }
    // Other runs are nobody's business.
    assert!(open(&server, &new_run()).set(b"x", None).unwrap().won);
    notices.silence(Duration::from_millis(200));
    let started = Instant::now();
    drop(reader);
    assert!(notices.0.recv().is_err());
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn heartbeats_wake_nobody() {
    let server = Server::shared();
    let run = new_run();
    let (mut writer, mut reader) = (open(&server, &run), open(&server, &run));
    let mut state = RendezvousState::default();
    state.participants.insert(node(1), 0);
    let written = writer.set(&encode(&state), None).unwrap();
    let notices = Notices::of(&mut reader);
    state
        .last_heartbeats
        .insert(node(1), Wall::from_unix_micros(1));
    let (_, token) = written.now.unwrap();
    let written = writer.set(&encode(&state), Some(&token)).unwrap();
    assert!(written.won);
    notices.silence(Duration::from_millis(300));
    state.closed = true;
    let (_, token) = written.now.unwrap();
    assert!(writer.set(&encode(&state), Some(&token)).unwrap().won);
    notices.changed();
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_change_is_notified_even_when_etcd_has_forgotten_what_came_before() {
    let server = Server::start();
    let run = new_run();
    let (mut writer, mut reader) = (open(&server, &run), open(&server, &run));
    let notices = Notices::of(&mut reader);
    let store = open_store(&server.options(), None).unwrap();
    // More changes of other keys than etcd remembers.
    for number in 0..1100_u32 {
        store.set("busy", &number.to_be_bytes()).unwrap();
    }
    let (_, token) = writer.set(b"a", None).unwrap().now.unwrap();
    notices.changed();
    assert!(writer.set(b"b", Some(&token)).unwrap().won);
    notices.changed();
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_crash_and_restart_in_the_middle_loses_nothing() {
    let server = Server::start();
    let run = new_run();
    let (mut one, mut other) = (open(&server, &run), open(&server, &run));
    let notices = Notices::of(&mut other);
    let (before, token) = one.set(b"before", None).unwrap().now.unwrap();
    notices.changed();
    let store = one.round_store(0).unwrap();
    store.set("key", b"value").unwrap();

    server.crash();
    thread::scope(|scope| {
        let reading = scope.spawn(|| other.get().unwrap());
        let waiting = scope.spawn(|| store.wait(&["later"], Some(LONG)).unwrap());
        server.go_on();
        assert_eq!(reading.join().unwrap().unwrap(), (before, token.clone()));
        store.try_clone().unwrap().set("later", b"").unwrap();
        waiting.join().unwrap();
    });
    assert_eq!(store.get("key").unwrap(), "value");
    assert!(one.set(b"after", Some(&token)).unwrap().won);
    notices.changed();
    assert_eq!(other.get().unwrap().unwrap().0, "after");
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_server_away_for_too_long_is_named() {
    let server = Server::start();
    let mut options = server.options();
    options.read_timeout = Duration::from_secs(1);
    let mut state = EtcdV2State::open(&options, &new_run()).unwrap();
    let notices = Notices::of(&mut state);
    server.crash();
    let error = state.set(b"x", None).unwrap_err().to_string();
    let place = state.place();
    assert!(
        error.contains(&place) && error.contains("read_timeout"),
        "{error}"
    );
    // The end of the watch is a reason to look at the state; then the server is given up.
    notices.changed();
    match notices.0.recv_timeout(LONG).unwrap() {
        Notice::Lost(error) => assert!(error.to_string().contains(&place), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_store_waits_counts_and_compares() {
    let server = Server::shared();
    let store = open(&server, &new_run()).round_store(0).unwrap();
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mine = store.try_clone().unwrap();
                start.wait();
                for _ in 0..5 {
                    mine.add("count", 1).unwrap();
                }
            });
        }
        let waiting = scope.spawn(|| store.get("late").unwrap());
        let other = store.try_clone().unwrap();
        other.set("late", b"here").unwrap();
        assert_eq!(waiting.join().unwrap(), "here");
    });
    assert_eq!(store.get("count").unwrap(), "20");
    assert_eq!(store.compare_set("c", b"x", b"y").unwrap(), "x");
    assert!(!store.check(&["c"]).unwrap());
    assert_eq!(store.compare_set("c", b"", b"y").unwrap(), "y");
    assert_eq!(store.compare_set("c", b"x", b"z").unwrap(), "y");
    store.append("c", b"z").unwrap();
    assert_eq!(store.get("c").unwrap(), "yz");
    assert!(store.add("c", 1).is_err());
    assert!(store.delete_key("c").unwrap());
    assert!(!store.delete_key("c").unwrap());

    let short = Some(Duration::from_millis(100));
    match store.wait(&["late", "never"], short).unwrap_err() {
        StoreError::WaitTimeout {
            missing, elapsed, ..
        } => {
            assert_eq!(missing.len(), 1, "{missing:?}");
            assert!(elapsed >= Duration::from_millis(100));
        }
        other => panic!("{other}"),
    }
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_waiting_call_can_be_ended_from_another_thread() {
    let server = Server::shared();
    let store = Arc::new(open_store(&server.options(), None).unwrap());
    let breaker = store.breaker().unwrap();
    let other = store.try_clone().unwrap();
    let key = format!("{:016x}", fastrand::u64(..));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait(&[&key], Some(LONG)));
        other.set("begun", b"").unwrap();
        breaker();
        assert!(waiting.join().unwrap().is_err());
    });
    other.set(&key, b"").unwrap();
}
