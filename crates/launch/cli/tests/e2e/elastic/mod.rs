//! Tests of several agents on this machine: real processes over loopback.
//!
//! | file | topic |
//! |---|---|
//! | `membership` | nodes that join, leave, die, or are surplus |
//! | `agent_restarts` | killed agents that are restarted |
//! | `group` | the coordinator's group in status pages, metrics and events |
//! | `goodput` | the time of each node by class |
//! | `killed_together` | agents that are killed with guard and keeper |
//! | `open_group` | jobs with one endpoint, whose agents become voters |
//! | `voters` | coordinators that die with their machine, and agents that are stopped |
//! | `restarts` | a store that is killed and restarted |
//! | `moved` | a store whose address differs from the one that clients know |
//! | `network` | a node behind a cut link |
//! | `hostile_peers` | other clients of the endpoint |
//! | `spares` | spare nodes, and ranks that nodes keep |
//! | `secret` | a job with a token, and peers without it |
//! | `endings` | how the end of one node ends the other nodes |
//! | `verdict` | every node names the first failure of the job |
//! | `waiting` | agents that wait for others |
//! | `etcd` | a rendezvous over an etcd server, which may crash |

mod agent_restarts;
mod endings;
mod etcd;
mod goodput;
mod group;
mod hostile_peers;
mod killed_together;
mod membership;
mod moved;
mod network;
mod open_group;
mod restarts;
mod secret;
mod spares;
mod verdict;
mod voters;
mod waiting;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_rendezvous_proto::{RendezvousState, codec};
use rdzv_store::{Store, TcpStore, TcpStoreOptions};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Ended, Job, Running, free_port, poll, rdzv, run_shell};

/// Shell code that prints ranks, master endpoint, restart count and round.
const PRINT_ROUND: &str = "echo rank $RANK/$WORLD_SIZE node $GROUP_RANK/$GROUP_WORLD_SIZE \
    at $MASTER_ADDR:$MASTER_PORT restarts $TORCHELASTIC_RESTART_COUNT round $RDZV_ROUND";

/// Returns the number of repetitions of a test: RDZV_ROUNDS, or 3.
fn rounds() -> usize {
    let rounds = std::env::var("RDZV_ROUNDS").ok();
    rounds.map_or(3, |rounds| rounds.parse().unwrap())
}

/// Rendezvous endpoint of a test's agents.
struct RendezvousPoint {
    endpoint: String,
    store: Option<Running>,
}

/// Starts a store that belongs to no agent.
fn store() -> RendezvousPoint {
    store_with(&[])
}

/// Starts a store that belongs to no agent, with more flags.
fn store_with(flags: &[&str]) -> RendezvousPoint {
    let store = rdzv(["store", "--host", "127.0.0.1", "--port", "0"]);
    serving(store.args(flags))
}

/// Starts a store, and returns its endpoint.
fn serving(store: Job) -> RendezvousPoint {
    let running = store.start();
    RendezvousPoint {
        endpoint: running.address().to_string(),
        store: Some(running),
    }
}

/// Returns a free port at which the first agent hosts the store.
fn first_agent() -> RendezvousPoint {
    RendezvousPoint {
        endpoint: format!("127.0.0.1:{}", free_port()),
        store: None,
    }
}

impl RendezvousPoint {
    /// Returns an agent at this endpoint, with a shell script as its worker.
    fn node(&self, flags: &[&str], script: &str) -> Job {
        let rendezvous = [
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            "--rdzv-endpoint",
            &self.endpoint,
        ];
        run_shell(&[&rendezvous, flags].concat(), script).env("PET_LOCAL_ADDR", "127.0.0.1")
    }

    /// Starts two nodes; the first one hosts the rendezvous if no store does.
    fn two_nodes(&self, flags: &[&str], script: &str) -> [Running; 2] {
        let first = self.node(flags, script).start();
        if self.store.is_none() {
            await_participants(&self.endpoint, 1, |_| true);
        }
        [first, self.node(flags, script).start()]
    }

    /// Stops the store, and asserts its success.
    fn end(self) {
        if let Some(store) = self.store {
            terminated(store).expect(0);
        }
    }
}

/// Gate that workers wait for; a file in a private folder opens it.
struct Gate(TempDir);

impl Gate {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Returns a path in the folder of the gate.
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a shell loop that repeats a step until the gate is open.
    fn while_closed(&self, step: &str) -> String {
        let go = self.path("go");
        format!("until test -e {}; do {step}; done", go.display())
    }

    /// Returns a worker that prints its round, and exits when the gate is open.
    fn script(&self) -> String {
        format!("{PRINT_ROUND}; {}", self.while_closed("sleep 0.05"))
    }

    fn open(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    /// Opens the gate, and asserts the success of all nodes.
    fn finish(&self, nodes: impl IntoIterator<Item = Running>) -> Vec<Ended> {
        self.open();
        let ended = nodes.into_iter().map(|node| node.wait().expect(0));
        ended.collect()
    }

    /// Opens the gate, and asserts success without a restart after a failure.
    fn finish_without_failures(&self, nodes: impl IntoIterator<Item = Running>) -> Vec<Ended> {
        let all = self.finish(nodes);
        for ended in &all {
            assert_eq!(printed(&ended.stdout, "restarts"), "0", "{}", ended.stdout);
        }
        all
    }
}

/// Waits until the stdout of each node contains a text `times` times.
#[track_caller]
fn await_each<'n>(nodes: impl IntoIterator<Item = &'n Running>, text: &str, times: usize) {
    for node in nodes {
        node.stdout.await_text(text, times);
    }
}

/// Sends SIGTERM to a node or store, and waits for its exit.
fn terminated(node: Running) -> Ended {
    node.signal(Signal::TERM);
    node.wait()
}

/// Kills the launcher of a node, and waits until all its processes have exited.
fn kill_node(node: Running) {
    node.signal(Signal::KILL);
    expect_killed(node);
}

/// Waits until no process is left of a node whose launcher was killed.
fn expect_killed(node: Running) {
    assert!(node.all_gone_within(Duration::from_secs(20)));
    node.wait().expect(-9);
}

/// Returns the word after `name` in the last line of a worker.
fn printed(stdout: &str, name: &str) -> String {
    let line = stdout
        .lines()
        .rfind(|line| line.contains("rank "))
        .unwrap_or_else(|| panic!("nothing was printed: {stdout:?}"));
    let (_, behind) = line.rsplit_once(&format!("{name} ")).unwrap();
    behind.split(' ').next().unwrap().to_owned()
}

/// Connects to the agents' store.
fn client(endpoint: &str) -> TcpStore {
    let (host, port) = endpoint.rsplit_once(':').unwrap();
    TcpStore::connect(TcpStoreOptions::new(host, port.parse().unwrap())).unwrap()
}

/// Waits until the state in the store satisfies a condition.
fn await_state(endpoint: &str, wanted: impl Fn(&RendezvousState) -> bool) {
    let store = client(endpoint);
    poll(|| {
        // As an agent does, this sets a missing state to the text for "no state yet".
        let value = store.compare_set("torch.rendezvous.job", b"", codec::SENTINEL);
        let state = codec::from_value(&value.unwrap())
            .unwrap()
            .unwrap_or_default();
        if wanted(&state) {
            Ok(())
        } else {
            Err(Box::new(state))
        }
    });
}

/// Waits until `count` nodes participate, and all satisfy a condition.
fn await_participants(endpoint: &str, count: usize, wanted: impl Fn(&str) -> bool) {
    await_state(endpoint, |state| {
        state.participants.len() == count
            && state
                .participants
                .keys()
                .all(|node| wanted(&node.to_string()))
    });
}
