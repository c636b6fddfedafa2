//! Tests of groups with one process (`collective_worker`) per rank.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::process::{Command, Stdio};

use rdzv_store::{ServerOptions, TcpStoreServer};
use rdzv_testing::Process;

/// Ranks of a group, and their store.
struct Ranks {
    ranks: Vec<Rank>,
    _store: TcpStoreServer,
}

struct Rank {
    number: usize,
    process: Process,
}

impl Ranks {
    fn start(world_size: usize) -> Self {
        let store = TcpStoreServer::start(ServerOptions {
            port: 0,
            ..ServerOptions::default()
        })
        .unwrap();
        let address = format!("127.0.0.1:{}", store.port());
        let ranks = (0..world_size).map(|number| Rank::start(&address, number, world_size));
        let ranks = Self {
            ranks: ranks.collect(),
            _store: store,
        };
        ranks.said("ready");
        ranks
    }

    fn tell(&mut self, what: &str) {
        for rank in &mut self.ranks {
            rank.process.send(what);
        }
    }

    /// Checks that every rank prints this line.
    fn said(&self, expected: &str) {
        for rank in &self.ranks {
            assert_eq!(rank.process.line(), expected, "rank {}", rank.number);
        }
    }

    /// Sends all ranks this command, and checks that all succeed.
    fn all(&mut self, what: &str) {
        self.tell(what);
        self.said("ok");
    }

    /// Kills rank 2 during this command, and checks that all other ranks name it.
    fn kill_while(&mut self, what: &str) {
        let mut killed = self.ranks.remove(2);
        self.tell(what);
        killed.process.kill();
        self.have_named_the_killed();
    }

    fn have_named_the_killed(&self) {
        for rank in &self.ranks {
            let error = rank.process.line();
            assert!(error.contains("rank 2"), "rank {}: {error}", rank.number);
        }
    }
}

impl Rank {
    fn start(store: &str, number: usize, world_size: usize) -> Self {
        let mut command = Command::new(rdzv_testing::program("collective_worker"));
        command
            .args([store, &number.to_string(), &world_size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self {
            number,
            process: Process::start(&mut command),
        }
    }
}

#[test]
fn every_operation_between_processes() {
    for world_size in [1, 2, 3, 4, 7] {
        Ranks::start(world_size).all("operations");
    }
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others_at_once() {
    let mut group = Ranks::start(4);
    // After this, every two ranks are connected.
    group.all("operations");
    group.kill_while("barrier");
}

#[test]
fn a_rank_that_is_killed_while_all_read_one_another_is_named_by_all_others() {
    for _ in 0..5 {
        let mut group = Ranks::start(4);
        group.tell("reduce");
        group.said("reducing");
        group.ranks.remove(2).process.kill();
        group.have_named_the_killed();
    }
}

#[test]
fn a_rank_that_is_killed_is_named_by_those_who_exchange_messages_with_it() {
    for what in ["receive", "receive-any", "send"] {
        let mut group = Ranks::start(4);
        // After this, neighbours have exchanged messages.
        group.all("operations");
        group.kill_while(what);
    }
}

#[test]
fn a_monitored_barrier_lists_all_who_did_not_come() {
    let mut group = Ranks::start(4);
    group.all("barrier");
    for number in [0, 2] {
        group.ranks[number].process.send("monitored 500");
    }
    let error = group.ranks[0].process.line();
    assert!(error.contains("for ranks 1, 3 of 4"), "{error}");
    let error = group.ranks[2].process.line();
    assert!(error.contains("rank 1"), "{error}");
}
