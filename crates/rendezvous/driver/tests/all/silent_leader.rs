//! A complete round whose rank 0 publishes no endpoint for the workers.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::thread;
use std::time::{Duration, Instant};

use rdzv_rendezvous::{RendezvousBackend, RendezvousError};
use rdzv_rendezvous_proto::codec::{from_value, to_value};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState};
use rdzv_store::{Store, TcpStore, TcpStoreOptions, TcpStoreServer};

use crate::support::{member, node, server};

const KEY: &str = "torch.rendezvous.run";

/// Far longer than any step of these tests.
const LONG: Duration = Duration::from_secs(20);

/// Store with a fake node, which exists only in the state.
struct Leader {
    server: TcpStoreServer,
    store: TcpStore,
    me: NodeDesc,
}

impl Leader {
    fn new() -> Self {
        let server = server();
        let store = TcpStore::connect(TcpStoreOptions::new("127.0.0.1", server.port())).unwrap();
        Self {
            server,
            store,
            me: NodeDesc {
                // Sorts before every other node.
                addr: "0.0.0.0".to_owned(),
                pid: 1,
                local_id: 0,
            },
        }
    }

    /// Creates a real node beside the fake one, in rounds of two nodes.
    fn node(&self, config: &str) -> Box<dyn RendezvousBackend> {
        let config = format!("is_host=0,join_timeout=15,{config}");
        let endpoint = format!("127.0.0.1:{}", self.server.port());
        node("c10d", &endpoint, "run", (2, 2), &config)
    }

    /// Changes the state once `when` accepts it.
    fn change(&self, when: impl Fn(&RendezvousState) -> bool, to: impl Fn(&mut RendezvousState)) {
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            let value = self.store.get(KEY).unwrap();
            if let Some(mut state) = from_value(&value).unwrap()
                && when(&state)
            {
                to(&mut state);
                let desired = to_value(&state);
                if self.store.compare_set(KEY, &value, &desired).unwrap() == desired {
                    return;
                }
            }
            thread::yield_now();
        }
        panic!("the state did not come to be as expected");
    }

    /// Completes the round once the real node is in it.
    fn complete(&self) {
        self.change(
            |state| !state.complete && state.participants.len() == 1,
            |state| {
                let (other, now) = state.last_heartbeats.pop_first().unwrap();
                state.participants = [(self.me.clone(), 0), (other.clone(), 1)].into();
                state.last_heartbeats = [(self.me.clone(), now), (other, now)].into();
                state.deadline = None;
                state.complete = true;
            },
        );
    }

    /// Removes the fake node from the complete round.
    fn leave(&self) {
        self.change(
            |state| state.complete,
            |state| {
                state.participants.remove(&self.me);
                state.last_heartbeats.remove(&self.me);
            },
        );
    }

    fn says_where(&self, round: u64) {
        self.store
            .set(&format!("{KEY}.{round}/MASTER_ADDR"), b"there")
            .unwrap();
        self.store
            .set(&format!("{KEY}.{round}/MASTER_PORT"), b"7")
            .unwrap();
    }
}

#[test]
fn it_is_waited_for_and_then_named() {
    let leader = Leader::new();
    let mut node = leader.node("read_timeout=1");
    thread::scope(|scope| {
        let joining = scope.spawn(|| node.join(&member()).unwrap_err().to_string());
        leader.complete();
        let text = joining.join().unwrap();
        for part in ["round 0 of run 'run'", "rank 0 (0.0.0.0_1_0)", "within 1."] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    });
    leader.change(|state| state.participants.len() == 1, |_| {});
}

#[test]
fn the_wait_for_it_can_be_interrupted() {
    let leader = Leader::new();
    let mut node = leader.node("read_timeout=30");
    // Connects, because without a connection there is nothing to interrupt.
    node.is_closed().unwrap();
    let interrupt = node.interrupter().unwrap();
    thread::scope(|scope| {
        let joining = scope.spawn(|| node.join(&member()).unwrap_err());
        leader.complete();
        let started = Instant::now();
        interrupt();
        let error = joining.join().unwrap();
        assert!(matches!(error, RendezvousError::Interrupted), "{error}");
        assert!(started.elapsed() < LONG);
    });
    // The node has left its round.
    leader.change(|state| state.participants.keys().eq([&leader.me]), |_| {});
}

#[test]
fn if_it_is_lost_the_node_joins_the_next_round_by_itself() {
    let leader = Leader::new();
    let mut node = leader.node("read_timeout=30");
    thread::scope(|scope| {
        let joining = scope.spawn(|| node.join(&member()).unwrap());
        leader.complete();
        leader.leave();
        leader.complete();
        leader.says_where(1);
        let info = joining.join().unwrap();
        assert_eq!((info.round, info.world_size), (1, 2));
        assert_eq!((info.master_addr.as_str(), info.master_port), ("there", 7));
    });
}
