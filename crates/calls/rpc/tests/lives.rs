//! Tests agents that start and end in one process.
//!
//! No other test runs in this process, so that its threads can be counted.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc::{Method, Methods, RpcAgent, blocking};
use rdzv_store::{HashStore, Store};

const LONG: Duration = Duration::from_secs(60);

const TWICE: Method<i64, i64> = Method::new("twice");

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs one life of a worker in a group of two.
fn live(store: &Arc<dyn Store>, rank: u32) {
    let methods = Methods::new().with(TWICE, blocking(|number: i64| Ok::<_, String>(2 * number)));
    let builder = RpcAgent::builder(format!("w{rank}"))
        .rank(rank)
        .world_size(2);
    let builder = builder.store(Arc::clone(store)).methods(methods);
    let agent = builder.connect().unwrap();
    let other = 1 - rank;
    assert_eq!(agent.call(other, TWICE, &4).wait().unwrap(), 8);
    agent.shutdown(LONG).unwrap();
}

#[test]
fn twenty_lives_leave_neither_threads_nor_descriptors() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let most_threads = threads();
    let mut most_descriptors = None;
    for life in 0..20 {
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let store = &store;
                scope.spawn(move || live(store, rank));
            }
        });
        // Threads of functions end automatically, a little later.
        let deadline = Instant::now() + LONG;
        while threads() > most_threads {
            let now = threads();
            assert!(
                Instant::now() < deadline,
                "{now} threads after {life} lives, {most_threads} before"
            );
            std::thread::yield_now();
        }
        // Descriptors that a process opens only once are open by now.
        let open = descriptors();
        assert!(
            open <= *most_descriptors.get_or_insert(open),
            "{open} descriptors after {life} lives, {most_descriptors:?} after the first"
        );
    }
}
