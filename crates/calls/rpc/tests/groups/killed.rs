//! Tests of worker processes that are killed.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdzv_store::{ServerOptions, Store, TcpStore, TcpStoreOptions, TcpStoreServer};
use rdzv_testing::{NoLine, Process};
use rustix::process::Signal;

/// Far more time than any of these tests takes.
const LONG: Duration = Duration::from_secs(60);

const LEASE_MS: &str = "2000";

/// Time within which a dead member is removed, even on a busy machine.
const OUT: Duration = Duration::from_secs(30);

struct TestStore {
    server: TcpStoreServer,
    port: u16,
}

impl TestStore {
    fn new() -> Self {
        let options = ServerOptions {
            host: Some("127.0.0.1".to_owned()),
            ..ServerOptions::default()
        };
        let server = TcpStoreServer::start(options).unwrap();
        let port = server.port();
        Self { server, port }
    }

    fn client(&self) -> TcpStore {
        TcpStore::connect(TcpStoreOptions::new("127.0.0.1", self.port)).unwrap()
    }

    /// Starts a process that joins with a lease of 2 s.
    fn join(&self, name: &str, rank: u32, more: &[&str]) -> Worker {
        let rank = rank.to_string();
        let arguments = ["join", &self.endpoint(), name, &rank, LEASE_MS];
        Worker::start(&[&arguments[..], more].concat())
    }

    /// Starts a process that joins a static group of this size.
    fn form(&self, name: &str, rank: u32, world_size: &str, more: &[&str]) -> Worker {
        let rank = rank.to_string();
        let arguments = ["form", &self.endpoint(), name, &rank, world_size, "60000"];
        Worker::start(&[&arguments[..], more].concat())
    }

    fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// A process of `group_member`.
struct Worker(Process);

impl Worker {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(rdzv_testing::program("group_member"));
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self(Process::start(&mut command))
    }

    /// Returns the next line; `None` after the end of the process.
    fn line(&self) -> Option<String> {
        match self.0.stdout.line_within(LONG) {
            Ok(line) => Some(line),
            Err(NoLine::End) => None,
            Err(NoLine::Timeout) => panic!("no line within {LONG:?}"),
        }
    }

    /// Waits for a line.
    fn wait_for(&self, wanted: &str) {
        let mut seen = Vec::new();
        while let Some(line) = self.line() {
            if line == wanted {
                return;
            }
            seen.push(line);
        }
        panic!("it ended without saying {wanted:?}, but {seen:?}");
    }
}

#[test]
fn a_killed_member_is_out_when_its_lease_is_over() {
    let store = TestStore::new();
    let a = store.join("a", 0, &[]);
    let mut b = store.join("b", 1, &[]);
    let c = store.join("c", 2, &[]);
    a.wait_for("view a b c");
    c.wait_for("view a b c");
    b.0.kill();
    let killed = Instant::now();
    a.wait_for("view a c");
    c.wait_for("view a c");
    assert!(killed.elapsed() < OUT, "{:?}", killed.elapsed());
    // The worker returns with its name and rank.
    let again = store.join("b", 1, &[]);
    again.wait_for("view a b c");
    a.wait_for("view a b c");
}

#[test]
fn a_killed_member_comes_back_at_once_or_when_its_lease_is_over() {
    let store = TestStore::new();
    let a = store.join("a", 0, &[]);
    let mut b = store.join("b", 1, &[]);
    a.wait_for("view a b");
    b.0.kill();
    let killed = Instant::now();
    let again = store.join("b", 1, &[]);
    again.wait_for("view a b");
    assert!(killed.elapsed() < OUT, "{:?}", killed.elapsed());
    a.wait_for("view a b");
}

/// A worker that is killed during its join delays no other and leaves nothing.
#[test]
fn a_joiner_killed_anywhere_leaves_no_ghost() {
    let mut was_in = false;
    for call in 0..40 {
        let store = TestStore::new();
        let mut a = store.join("a", 0, &[]);
        a.wait_for("view a");
        let ghost = store.join("ghost", 1, &[&call.to_string()]);
        // The process prints `in` after it has joined, or it dies before that.
        was_in = ghost.line().is_some();
        while ghost.line().is_some() {}
        let killed = Instant::now();
        let b = store.join("b", 2, &[]);
        b.wait_for("in");
        b.0.send("leave");
        b.wait_for("left");
        assert!(killed.elapsed() < OUT, "call {call}");
        let mut again = store.join("ghost", 1, &[]);
        again.wait_for("view a ghost");
        assert!(
            killed.elapsed() < OUT,
            "call {call}: {:?}",
            killed.elapsed()
        );
        for one in [&mut again, &mut a] {
            one.0.send("leave");
            one.wait_for("left");
        }
        let keys = store.client().list_keys().unwrap();
        assert!(
            !keys.iter().any(|key| key.contains("/beat/")),
            "call {call}: {keys:?}"
        );
        drop(store.server);
        if was_in {
            assert!(call >= 2, "joining takes only {call} requests?");
            break;
        }
    }
    assert!(was_in);
}

#[test]
fn a_member_that_was_stopped_for_too_long_is_notified_that_it_is_out() {
    let store = TestStore::new();
    let a = store.join("a", 0, &[]);
    let b = store.join("b", 1, &[]);
    a.wait_for("view a b");
    b.wait_for("view a b");
    b.0.signal(Signal::STOP);
    a.wait_for("view a");
    b.0.signal(Signal::CONT);
    let said = loop {
        let line = b.line().unwrap();
        if line.starts_with("detached") {
            break line;
        }
    };
    assert!(
        said.contains("PeerLost") && said.contains("members removed it"),
        "{said}"
    );
    // Its own absence is no reason to remove the others.
    let c = store.join("c", 2, &[]);
    c.wait_for("view a c");
}

/// Tests a worker that is killed before the group can be formed without it.
/// Request 5, counted from 0, records that the worker has read all others.
#[test]
fn a_worker_killed_while_a_static_group_forms_can_be_started_again() {
    for call in ["0", "1", "2", "3", "4", "5"] {
        let store = TestStore::new();
        let others = [("w0", 0), ("w2", 2)].map(|(name, rank)| store.form(name, rank, "3", &[]));
        let first = store.form("w1", 1, "3", &[call]);
        assert_eq!(first.line(), None, "call {call}");
        let again = store.form("w1", 1, "3", &[]);
        again.wait_for("view w0 w1 w2");
        for other in &others {
            other.wait_for("view w0 w1 w2");
        }
    }
}

#[test]
fn a_stopped_worker_is_named_when_a_static_group_ends() {
    let store = TestStore::new();
    let workers: Vec<Worker> = (0..3)
        .map(|rank| store.form(&format!("w{rank}"), rank, "3", &[]))
        .collect();
    for worker in &workers {
        worker.wait_for("view w0 w1 w2");
    }
    workers[1].0.signal(Signal::STOP);
    let started = Instant::now();
    for rank in [0, 2] {
        workers[rank].0.send("shutdown 2000");
    }
    let verdicts = [0, 2].map(|rank| workers[rank].line().unwrap());
    let within = Duration::from_secs(2)..LONG / 3;
    assert!(within.contains(&started.elapsed()));
    assert!(
        verdicts[0].contains("w1 (rank 1) did not drain"),
        "{verdicts:?}"
    );
    assert_eq!(verdicts[0], verdicts[1]);
    workers[1].0.signal(Signal::CONT);
    workers[1].0.send("shutdown 2000");
    assert_eq!(workers[1].line().unwrap(), verdicts[0]);
}
