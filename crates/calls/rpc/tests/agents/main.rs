//! Tests of agents as an application uses them, with real stores.

#![allow(clippy::unwrap_used, reason = "tests")]

mod devices;
mod ending;
mod process;
mod registry;
mod successors;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc::{Method, Methods, RpcAgent};
use rdzv_store::{HashStore, Store};

/// Far more time than any of these tests takes.
const LONG: Duration = Duration::from_secs(60);

const TWICE: Method<i64, i64> = Method::new("twice");

fn methods() -> Methods {
    Methods::new().with(TWICE, async |number: i64| Ok::<_, String>(2 * number))
}

fn store() -> Arc<dyn Store> {
    Arc::new(HashStore::new())
}

/// Joins a dynamic group as a new member.
fn join(store: &Arc<dyn Store>, name: &str, rank: u32) -> RpcAgent {
    let builder = RpcAgent::builder(name).rank(rank);
    let builder = builder.store(Arc::clone(store)).methods(methods());
    builder.connect().unwrap()
}

/// Polls until a condition holds.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {LONG:?}: {what}");
        std::thread::yield_now();
    }
}

/// Shuts all agents down at the same time.
fn shut_down(agents: &[RpcAgent]) {
    std::thread::scope(|scope| {
        for agent in agents {
            scope.spawn(|| agent.shutdown(LONG).unwrap());
        }
    });
}
