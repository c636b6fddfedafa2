//! Tests of every attack of the hostile suite on a server.
//!
//! An honest client uses the server at the same time. Its connection continues with right answers,
//! and the resources of the attack are bounded. No test measures time.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Duration;

use rdzv_store::{
    KeepAlive, Limits, ServerOptions, ServerStats, Store, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use rdzv_store_proto::server::TURN_WORK;
use rdzv_testing::DEADLINE;
use rdzv_testing::hostile::{Attack, Attacker, CONNECTIONS, attacks};

const MEMORY: usize = 64 << 20;

/// Maximum memory of a peer that has not joined the job.
/// It is the share of an address, and the excess of one request.
const SHARE: usize = MEMORY / 4 + (2 << 20);

/// Maximum work of a turn.
/// It is the limit of a turn, one more request or reply, and the waits that end with one request.
/// Each connection has a bounded number of waits.
const TURN: usize = 8 * TURN_WORK;

/// More work of a turn that copies a large value which a client reads.
const COPY: usize = 4 << 20;

fn server() -> TcpStoreServer {
    TcpStoreServer::start(ServerOptions {
        host: Some("0.0.0.0".to_owned()),
        limits: Limits {
            max_memory_bytes: MEMORY,
            max_keys: 1_000_000,
            ..Limits::default()
        },
        keep_alive: KeepAlive {
            idle: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            attempts: 1,
            ..KeepAlive::default()
        },
        ..ServerOptions::default()
    })
    .unwrap()
}

/// A client like PyTorch's, which never connects again.
struct Honest {
    store: TcpStore,
    rounds: usize,
}

impl Honest {
    fn new(port: u16) -> Self {
        let store = TcpStore::connect(TcpStoreOptions {
            timeout: DEADLINE,
            ..TcpStoreOptions::new("127.0.0.1", port)
        });
        Self {
            store: store.unwrap(),
            rounds: 0,
        }
    }

    /// Writes, reads and counts.
    fn ask(&mut self) {
        self.rounds += 1;
        let value = format!("{:-<1$}", self.rounds, 2000);
        let key = format!("honest/{}", self.rounds % 100);
        self.store.set(&key, value.as_bytes()).unwrap();
        assert_eq!(self.store.get(&key).unwrap(), value.as_bytes());
        let rounds = self.store.add("honest/rounds", 1).unwrap();
        assert_eq!(rounds, self.rounds as i64);
        self.store.wait(&[&key], Some(DEADLINE)).unwrap();
        assert!(self.store.check(&[&key, "honest/rounds"]).unwrap());
    }
}

/// Carries out an attack, and returns the server's figures.
fn attack(attack: Attack) -> ServerStats {
    let server = server();
    let mut honest = Honest::new(server.port());
    let mut attacker = Attacker::new(
        (Ipv4Addr::LOCALHOST, server.port()).into(),
        Some(IpAddr::from([127, 0, 0, 2])),
    );
    honest.ask();
    thread::scope(|scope| {
        let running = scope.spawn(|| (attack.run)(&mut attacker));
        while !running.is_finished() {
            honest.ask();
        }
        running.join().unwrap();
    });
    honest.ask();
    let stats = server.stats();
    // A closed connection leaves only its values behind.
    drop(attacker);
    while server.stats().connections > 1 || server.stats().waits > 0 {
        honest.ask();
    }
    stats
}

/// Carries out attacks, and checks the resources of each.
fn all_of(kind: &[Attack]) {
    for one in kind {
        let stats = attack(*one);
        println!("{:<55} {stats:?}", one.name);
        let name = one.name;
        assert!(stats.peak_memory_bytes <= SHARE, "{name}: {stats:?}");
        let copies = name.contains("append to a large value in turns");
        let turn = TURN + if copies { COPY } else { 0 };
        assert!(stats.longest_turn <= turn, "{name}: {stats:?}");
    }
}

/// Returns a part of the attacks, for tests that run in parallel.
fn part(number: usize) -> Vec<Attack> {
    attacks().skip(number).step_by(4).collect()
}

#[test]
fn an_honest_client_goes_on_during_the_first_quarter_of_the_attacks() {
    all_of(&part(0));
}

#[test]
fn an_honest_client_goes_on_during_the_second_quarter_of_the_attacks() {
    all_of(&part(1));
}

#[test]
fn an_honest_client_goes_on_during_the_third_quarter_of_the_attacks() {
    all_of(&part(2));
}

#[test]
fn an_honest_client_goes_on_during_the_last_quarter_of_the_attacks() {
    all_of(&part(3));
}

#[test]
fn clients_whose_host_is_gone_are_dropped_and_counted_and_others_are_not() {
    let server = server();
    let mut honest = Honest::new(server.port());
    let mut attacker = Attacker::new((Ipv4Addr::LOCALHOST, server.port()).into(), None);
    let gone = attacks().find(|attack| attack.name == "clients whose host is lost");
    (gone.unwrap().run)(&mut attacker);
    while server.stats().waits == 0 {
        honest.ask();
    }
    while server.stats().connections > 1 {
        honest.ask();
    }
    assert_eq!(server.stats().waits, 0);
    let lost = server.traffic().lost_connections;
    assert_eq!(lost, CONNECTIONS as u64);
}
