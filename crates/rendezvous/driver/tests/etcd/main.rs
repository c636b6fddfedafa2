//! Rendezvous over a real etcd server.
//!
//! These tests need the server's program, so a plain `cargo test` ignores them. `cargo xtask test`
//! provides it and runs them all.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod leases;
mod outages;
mod server;
mod state;
mod stores;

// All stores share one contract in the same files.
#[path = "../../../../store/driver/tests/contract/basics.rs"]
mod store_basics;
#[path = "../../../../store/driver/tests/contract/queues.rs"]
mod store_queues;
#[path = "../../../../store/driver/tests/contract/waiting.rs"]
mod store_waiting;
#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod torchrun;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdzv_core::ident::RunId;
use rdzv_rendezvous::dynamic::SharedState;
use rdzv_rendezvous::dynamic::shared::Notice;
use rdzv_rendezvous::etcd::EtcdState;
use rdzv_rendezvous_proto::NodeDesc;

use server::Server;
use stores::behaviours;

/// Far longer than any step of these tests.
///
/// Only a defect makes a test wait for it.
const LONG: Duration = Duration::from_secs(30);

/// Duration of a wait that should end without success.
const SHORT: Duration = Duration::from_millis(60);

/// Returns a name that no other test uses.
fn new_run() -> RunId {
    RunId::new(format!("run {:016x}", fastrand::u64(..)))
}

/// Returns the shared server, and a run that no other test uses.
fn shared_run() -> (Arc<Server>, RunId) {
    (Server::shared(), new_run())
}

fn open(server: &Server, run_id: &RunId) -> EtcdState {
    EtcdState::open(&server.options(), run_id).unwrap()
}

fn node(number: i64) -> NodeDesc {
    NodeDesc::new("node_a/b", number)
}

/// Notices that an observer receives.
struct Notices(Receiver<Notice>);

impl Notices {
    fn of(state: &mut dyn SharedState) -> Self {
        let (told, notices) = mpsc::channel();
        let told = Mutex::new(told);
        let observer = Arc::new(move |notice| {
            let _ = told.lock().unwrap().send(notice);
        });
        assert!(state.watch(observer).unwrap());
        let notices = Self(notices);
        // The first notice reports that the watch has started.
        notices.changed();
        notices
    }

    /// Waits for a change; no other notice may arrive before it.
    fn changed(&self) {
        match self.0.recv_timeout(LONG).unwrap() {
            Notice::Changed => {}
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of nodes, and skips changes before it.
    fn gone(&self) -> Vec<NodeDesc> {
        let end = Instant::now() + LONG;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.0.recv_timeout(left).unwrap() {
                Notice::Gone(nodes) => return nodes,
                Notice::Changed => {}
                Notice::Lost(error) => panic!("{error}"),
            }
        }
    }

    /// Checks that no notice arrives for a while.
    fn silence(&self, duration: Duration) {
        match self.0.recv_timeout(duration) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("{other:?}"),
        }
    }
}
