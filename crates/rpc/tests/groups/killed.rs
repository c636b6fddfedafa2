//! Workers as processes, ended by force.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_store::{ServerOptions, Store, TcpStore, TcpStoreOptions, TcpStoreServer};
use rustix::process::{Pid, Signal, kill_process};

/// Far more than anything here takes.
const LONG: Duration = Duration::from_secs(60);

const LEASE_MS: &str = "1000";

/// Within this a dead member is out: the lease and a second.
const OUT: Duration = Duration::from_secs(2);

struct Place {
    server: TcpStoreServer,
    port: u16,
}

impl Place {
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

    /// A process that joins under a lease of a second.
    fn join(&self, name: &str, rank: u32, more: &[&str]) -> Process {
        let rank = rank.to_string();
        let arguments = ["join", &self.endpoint(), name, &rank, LEASE_MS];
        Process::start(&[&arguments[..], more].concat())
    }

    /// A process that takes part in a group of this size.
    fn form(&self, name: &str, rank: u32, world_size: &str, more: &[&str]) -> Process {
        let rank = rank.to_string();
        let arguments = ["form", &self.endpoint(), name, &rank, world_size, "60000"];
        Process::start(&[&arguments[..], more].concat())
    }

    fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// A process of `examples/group_member`; it ends with the test.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let program: PathBuf = profile.join("examples/group_member");
        assert!(
            program.exists(),
            "`cargo test` builds the examples, but not for a single test file: \
             cargo build -p rdzv-rpc --examples"
        );
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line; `None` if it has ended.
    fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(LONG) {
            Ok(line) => Some(line),
            Err(error) => {
                assert_eq!(
                    error.to_string(),
                    "channel is empty and sending half is closed"
                );
                None
            }
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

    fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_killed_member_is_out_within_its_lease_and_a_second() {
    let place = Place::new();
    let a = place.join("a", 0, &[]);
    let mut b = place.join("b", 1, &[]);
    let c = place.join("c", 2, &[]);
    a.wait_for("view a b c");
    c.wait_for("view a b c");
    b.kill();
    let killed = Instant::now();
    a.wait_for("view a c");
    c.wait_for("view a c");
    assert!(killed.elapsed() < OUT, "{:?}", killed.elapsed());
    // It comes back under its name and rank.
    let again = place.join("b", 1, &[]);
    again.wait_for("view a b c");
    a.wait_for("view a b c");
}

#[test]
fn a_killed_member_comes_back_at_once_or_when_its_lease_is_over() {
    let place = Place::new();
    let a = place.join("a", 0, &[]);
    let mut b = place.join("b", 1, &[]);
    a.wait_for("view a b");
    b.kill();
    let killed = Instant::now();
    let again = place.join("b", 1, &[]);
    again.wait_for("view a b");
    assert!(killed.elapsed() < OUT, "{:?}", killed.elapsed());
    a.wait_for("view a b");
}

/// Wherever a worker is killed on its way in: nobody is held up, and nothing is left of it.
#[test]
fn a_joiner_killed_anywhere_leaves_no_ghost() {
    let mut was_in = false;
    for call in 0..40 {
        let place = Place::new();
        let mut a = place.join("a", 0, &[]);
        a.wait_for("view a");
        let ghost = place.join("ghost", 1, &[&call.to_string()]);
        // It prints that it is in, or dies before.
        was_in = ghost.line().is_some();
        while ghost.line().is_some() {}
        let killed = Instant::now();
        let mut b = place.join("b", 2, &[]);
        b.wait_for("in");
        b.say("leave");
        b.wait_for("left");
        assert!(killed.elapsed() < OUT, "call {call}");
        let mut again = place.join("ghost", 1, &[]);
        again.wait_for("view a ghost");
        assert!(
            killed.elapsed() < OUT,
            "call {call}: {:?}",
            killed.elapsed()
        );
        for one in [&mut again, &mut a] {
            one.say("leave");
            one.wait_for("left");
        }
        let keys = place.client().list_keys().unwrap();
        assert!(
            !keys.iter().any(|key| key.contains("/beat/")),
            "call {call}: {keys:?}"
        );
        drop(place.server);
        if was_in {
            assert!(call >= 2, "joining takes only {call} requests?");
            break;
        }
    }
    assert!(was_in);
}

#[test]
fn a_member_that_was_stopped_for_too_long_is_told_that_it_is_out() {
    let place = Place::new();
    let a = place.join("a", 0, &[]);
    let b = place.join("b", 1, &[]);
    a.wait_for("view a b");
    b.wait_for("view a b");
    b.signal(Signal::STOP);
    a.wait_for("view a");
    b.signal(Signal::CONT);
    let told = loop {
        let line = b.line().unwrap();
        if line.starts_with("detached") {
            break line;
        }
    };
    assert!(
        told.contains("PeerLost") && told.contains("took it for dead"),
        "{told}"
    );
    // It does not take the others for dead because it was away itself.
    let c = place.join("c", 2, &[]);
    c.wait_for("view a c");
}

/// Its fifth request says that it has read all others: from then on the group may be formed without
/// it.
#[test]
fn a_worker_killed_while_a_static_group_forms_can_be_started_again() {
    for call in ["0", "1", "2", "3", "4"] {
        let place = Place::new();
        let others = [("w0", 0), ("w2", 2)].map(|(name, rank)| place.form(name, rank, "3", &[]));
        let first = place.form("w1", 1, "3", &[call]);
        assert_eq!(first.line(), None, "call {call}");
        let again = place.form("w1", 1, "3", &[]);
        again.wait_for("view w0 w1 w2");
        for other in &others {
            other.wait_for("view w0 w1 w2");
        }
    }
}

#[test]
fn a_stopped_worker_is_named_when_a_static_group_ends() {
    let place = Place::new();
    let mut workers: Vec<Process> = (0..3)
        .map(|rank| place.form(&format!("w{rank}"), rank, "3", &[]))
        .collect();
    for worker in &workers {
        worker.wait_for("view w0 w1 w2");
    }
    workers[1].signal(Signal::STOP);
    let started = Instant::now();
    for rank in [0, 2] {
        workers[rank].say("shutdown 2000");
    }
    let verdicts = [0, 2].map(|rank| workers[rank].line().unwrap());
    let late = started.elapsed().abs_diff(Duration::from_secs(2));
    assert!(late < Duration::from_millis(200), "{:?}", started.elapsed());
    assert!(
        verdicts[0].contains("w1 (rank 1) did not drain"),
        "{verdicts:?}"
    );
    assert_eq!(verdicts[0], verdicts[1]);
    workers[1].signal(Signal::CONT);
    workers[1].say("shutdown 2000");
    assert_eq!(workers[1].line().unwrap(), verdicts[0]);
}
