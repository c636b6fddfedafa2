//! Groups of which each rank is a process (`examples/collective_worker.rs`).

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rdzv_store::{ServerOptions, TcpStoreServer};

/// How long any answer may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The ranks of a group, and the store where they met.
struct Ranks {
    ranks: Vec<Rank>,
    _store: TcpStoreServer,
}

/// A process, which ends with this.
struct Rank {
    number: usize,
    process: Child,
    answers: Receiver<String>,
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
        for rank in &ranks.ranks {
            assert_eq!(rank.hear(), "ready");
        }
        ranks
    }

    /// Tells all the same; all of them succeed.
    fn all(&mut self, what: &str) {
        for rank in &mut self.ranks {
            rank.tell(what);
        }
        for rank in &self.ranks {
            assert_eq!(rank.hear(), "ok", "rank {}: {what}", rank.number);
        }
    }
}

impl Rank {
    fn start(store: &str, number: usize, world_size: usize) -> Self {
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().unwrap().parent().unwrap();
        let program = profile.join("examples/collective_worker");
        assert!(
            program.exists(),
            "`cargo test` builds the examples, but not for a single test file: \
             cargo build -p rdzv-collective --examples"
        );
        let mut process = Command::new(program)
            .args([store, &number.to_string(), &world_size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (answer, answers) = channel();
        // It ends with the process.
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| answer.send(line))
        });
        Self {
            number,
            process,
            answers,
        }
    }

    fn tell(&mut self, what: &str) {
        let input = self.process.stdin.as_mut().unwrap();
        writeln!(input, "{what}").unwrap();
    }

    fn hear(&self) -> String {
        let number = self.number;
        self.answers
            .recv_timeout(LIMIT)
            .unwrap_or_else(|end| panic!("rank {number} does not answer: {end}"))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
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
    // After this each has a connection to each.
    group.all("operations");
    let mut killed = group.ranks.remove(2);
    for rank in &mut group.ranks {
        rank.tell("barrier");
    }
    killed.process.kill().unwrap();
    for rank in &group.ranks {
        let error = rank.hear();
        assert!(error.contains("rank 2"), "rank {}: {error}", rank.number);
    }
}

#[test]
fn a_rank_that_is_killed_while_all_read_one_another_is_named_by_all_others() {
    for _ in 0..5 {
        let mut group = Ranks::start(4);
        for rank in &mut group.ranks {
            rank.tell("reduce");
        }
        for rank in &group.ranks {
            assert_eq!(rank.hear(), "reducing");
        }
        let mut killed = group.ranks.remove(2);
        killed.process.kill().unwrap();
        for rank in &group.ranks {
            let error = rank.hear();
            assert!(error.contains("rank 2"), "rank {}: {error}", rank.number);
        }
    }
}

#[test]
fn a_monitored_barrier_lists_all_who_did_not_come() {
    let mut group = Ranks::start(4);
    group.all("barrier");
    for number in [0, 2] {
        group.ranks[number].tell("monitored 500");
    }
    let error = group.ranks[0].hear();
    assert!(error.contains("still without ranks 1, 3 of 4"), "{error}");
    let error = group.ranks[2].hear();
    assert!(error.contains("rank 1"), "{error}");
}
