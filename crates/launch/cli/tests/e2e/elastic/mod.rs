//! Several agents on this machine that find one another through `c10d`: real processes over
//! loopback.
//!
//! | file | shows |
//! |---|---|
//! | `membership` | nodes that come, go, die, and are too many |
//! | `agent_restarts` | agents that are killed and started again |
//! | `group` | the group of the coordinator, as the status of agents and stores shows it |
//! | `killed_together` | agents that are killed with everything around them |
//! | `voters` | coordinators that are killed with everything on their machine, and one that is cut off |
//! | `restarts` | a store that is killed and started again |
//! | `moved` | a store that has another address than its clients know |
//! | `network` | a node behind a cut link |
//! | `hostile_peers` | other clients of the endpoint |
//! | `secret` | a job with a token, and peers without it |
//! | `endings` | how the end of one node becomes the end of the others |
//! | `verdict` | the first failure of the job is named on every node |
//! | `waiting` | agents that wait for others, in vain or not |
//! | `etcd` | the same over an etcd server, which may crash |

mod agent_restarts;
mod endings;
mod etcd;
mod group;
mod hostile_peers;
mod killed_together;
mod membership;
mod moved;
mod network;
mod open_group;
mod restarts;
mod secret;
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

/// What a worker says first: ranks, where the workers meet, restart count and round.
const PRINT_ROUND: &str = "echo rank $RANK/$WORLD_SIZE node $GROUP_RANK/$GROUP_WORLD_SIZE \
    at $MASTER_ADDR:$MASTER_PORT restarts $TORCHELASTIC_RESTART_COUNT round $RDZV_ROUND";

/// Kills or cuts of a test that repeats them: RDZV_ROUNDS, for a long run, or 3.
fn rounds() -> usize {
    let rounds = std::env::var("RDZV_ROUNDS").ok();
    rounds.map_or(3, |rounds| rounds.parse().unwrap())
}

/// Where the agents of a test meet.
struct Place {
    endpoint: String,
    store: Option<Running>,
}

/// A store that belongs to no agent.
fn store() -> Place {
    store_with(&[])
}

/// The same with these flags.
fn store_with(flags: &[&str]) -> Place {
    let store = rdzv(["store", "--host", "127.0.0.1", "--port", "0"]);
    serving(store.args(flags))
}

/// The place of a store that is started.
fn serving(store: Job) -> Place {
    let running = store.start();
    Place {
        endpoint: running.address().to_string(),
        store: Some(running),
    }
}

/// A port at which the first agent hosts the store.
fn first_agent() -> Place {
    Place {
        endpoint: format!("127.0.0.1:{}", free_port()),
        store: None,
    }
}

impl Place {
    /// An agent that meets others here, with a shell script as its worker.
    fn node(&self, flags: &[&str], script: &str) -> Job {
        let rendezvous = [
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            "--rdzv-endpoint",
            &self.endpoint,
        ];
        run_shell(&[&rendezvous, flags].concat(), script).env("PET_LOCAL_ADDR", "127.0.0.1")
    }

    /// Two nodes, the first of which hosts the rendezvous if no store does.
    fn two_nodes(&self, flags: &[&str], script: &str) -> [Running; 2] {
        let first = self.node(flags, script).start();
        if self.store.is_none() {
            await_participants(&self.endpoint, 1, |_| true);
        }
        [first, self.node(flags, script).start()]
    }

    /// The store ends well, too.
    fn end(self) {
        if let Some(store) = self.store {
            terminated(store).expect(0);
        }
    }
}

/// Holds workers until it is opened, by a file in a folder of its own.
struct Gate(TempDir);

impl Gate {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A path beside the file.
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A loop of a shell that does this until the gate is open.
    fn until_open(&self, step: &str) -> String {
        let go = self.path("go");
        format!("until test -e {}; do {step}; done", go.display())
    }

    /// A worker that says where it is, and ends when the gate is open.
    fn script(&self) -> String {
        format!("{PRINT_ROUND}; {}", self.until_open("sleep 0.05"))
    }

    fn open(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    /// Opens the gate. All these nodes then end well.
    fn finish(&self, nodes: impl IntoIterator<Item = Running>) -> Vec<Ended> {
        self.open();
        let ended = nodes.into_iter().map(|node| node.wait().expect(0));
        ended.collect()
    }

    /// The same, and no worker has been restarted after a failure.
    fn finish_without_failures(&self, nodes: impl IntoIterator<Item = Running>) -> Vec<Ended> {
        let all = self.finish(nodes);
        for ended in &all {
            assert_eq!(printed(&ended.stdout, "restarts"), "0", "{}", ended.stdout);
        }
        all
    }
}

/// Waits until each of these nodes has written this to stdout so many times.
#[track_caller]
fn await_each<'n>(nodes: impl IntoIterator<Item = &'n Running>, text: &str, times: usize) {
    for node in nodes {
        node.stdout.await_text(text, times);
    }
}

/// Sends SIGTERM to a node or store, and waits for its end.
fn terminated(node: Running) -> Ended {
    node.signal(Signal::TERM);
    node.wait()
}

/// Kills an agent's launcher, if it is still there; with it goes everything that it started.
fn kill_node(node: Running) {
    node.signal(Signal::KILL);
    expect_killed(node);
}

/// Waits until nothing is left of a node whose launcher was killed.
fn expect_killed(node: Running) {
    assert!(node.all_gone_within(Duration::from_secs(20)));
    node.wait().expect(-9);
}

/// The word after `name` in the last line that a worker printed.
fn printed(stdout: &str, name: &str) -> String {
    let line = stdout
        .lines()
        .rfind(|line| line.contains("rank "))
        .unwrap_or_else(|| panic!("nothing was printed: {stdout:?}"));
    let (_, behind) = line.rsplit_once(&format!("{name} ")).unwrap();
    behind.split(' ').next().unwrap().to_owned()
}

/// The store that agents meet at.
fn client(endpoint: &str) -> TcpStore {
    let (host, port) = endpoint.rsplit_once(':').unwrap();
    TcpStore::connect(TcpStoreOptions::new(host, port.parse().unwrap())).unwrap()
}

/// Waits until the state in the store is as wanted.
fn await_state(endpoint: &str, wanted: impl Fn(&RendezvousState) -> bool) {
    let store = client(endpoint);
    poll(|| {
        // Absent, it becomes the text for "no state yet", as with an agent.
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

/// Waits until so many nodes take part, all of which are as wanted.
fn await_participants(endpoint: &str, count: usize, wanted: impl Fn(&str) -> bool) {
    await_state(endpoint, |state| {
        state.participants.len() == count
            && state
                .participants
                .keys()
                .all(|node| wanted(&node.to_string()))
    });
}
