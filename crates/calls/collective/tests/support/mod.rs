//! Ranks as threads of the test, on loopback.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part of this module"
)]

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use rdzv_collective::{CollectiveError, GroupOptions, ProcessGroup};
use rdzv_store::{HashStore, Store};

/// Time limit far above the duration of these tests.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Creates a separate store for a test.
pub(crate) fn store() -> HashStore {
    HashStore::new()
}

pub(crate) fn options(timeout: Duration) -> GroupOptions {
    GroupOptions {
        timeout,
        address: Some(Ipv4Addr::LOCALHOST.into()),
        ..GroupOptions::default()
    }
}

pub(crate) fn join(
    store: &dyn Store,
    rank: u32,
    world_size: u32,
    timeout: Duration,
) -> Result<ProcessGroup, CollectiveError> {
    ProcessGroup::with_options(store, rank, world_size, &options(timeout))
}

/// Runs all ranks of a group as threads, and returns their results in order.
pub(crate) fn run<R: Send>(
    world_size: u32,
    timeout: Duration,
    worker: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    run_with(world_size, &options(timeout), worker)
}

/// Runs all ranks with these options.
pub(crate) fn run_with<R: Send>(
    world_size: u32,
    options: &GroupOptions,
    worker: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    run_each(world_size, |_| options.clone(), worker)
}

/// Runs all ranks with options for each rank.
pub(crate) fn run_each<R: Send>(
    world_size: u32,
    options: impl Fn(u32) -> GroupOptions,
    worker: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let store = store();
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let (store, worker, options) = (&store, &worker, options(rank));
                let join = move || ProcessGroup::with_options(store, rank, world_size, &options);
                scope.spawn(move || worker(join().unwrap()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Options for Unix sockets without shared memory.
pub(crate) fn not_shared() -> GroupOptions {
    GroupOptions {
        shared: false,
        ..options(LONG)
    }
}

/// Options for TCP only.
pub(crate) fn far() -> GroupOptions {
    GroupOptions {
        local: false,
        ..options(LONG)
    }
}
