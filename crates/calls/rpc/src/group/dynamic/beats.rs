//! Thread that renews the lease of this member and checks other leases.
//!
//! A lease is a number in the store that its owner increments. A number that does not change wakes
//! no waiter, so the members have to poll it. Each member polls up to 16 members that follow it by
//! id, 16 times per lease.

use std::time::Instant;

use rdzv_core::time::Mono;
use rdzv_rpc_proto::directory::LeaseWatch;
use rdzv_store::Store;

use super::super::access::{announce, change, count, members, peek, remove};
use super::Shared;
use crate::RpcError;

/// Number of members, by id, that each member polls.
///
/// If more consecutive members die together, each further 16 are noticed one lease later.
const LOOKED_AT: usize = 16;

/// Runs until this member leaves or is detached from the group.
pub(super) fn run(shared: &Shared, store: &dyn Store) {
    let started = Instant::now();
    let mut watch = LeaseWatch::new(shared.lease);
    while !shared.is_over() {
        let beat = beat(shared, store, &mut watch, &started);
        if let Err(error) = beat {
            shared.detach(error);
        }
        let state = shared.state.lock();
        let is_running = |state: &mut super::State| !state.is_ending && state.detached.is_none();
        drop(
            shared
                .ending
                .wait_timeout_while(state, shared.beat(), is_running),
        );
    }
}

fn beat(
    shared: &Shared,
    store: &dyn Store,
    watch: &mut LeaseWatch,
    started: &Instant,
) -> Result<(), RpcError> {
    let keys = shared.keys;
    count(store, &keys.beat(shared.incarnation))?;
    let view = shared.view();
    let mut readings = Vec::new();
    for member in view.followers(LOOKED_AT) {
        let beats = peek(store, &keys.beat(member.incarnation))?;
        // Without a value, the member has not written its number yet, or the number was removed.
        let beats = beats.and_then(|beats| str::from_utf8(&beats).ok()?.parse().ok());
        readings.push((member.incarnation, beats.unwrap_or(0)));
    }
    let now = Mono::from_origin(started.elapsed());
    let silent = watch.expired(now, &readings);
    if !silent.is_empty() {
        for incarnation in &silent {
            remove(store, &keys.beat(*incarnation))?;
        }
        change(store, keys, |record| record.expire(&silent))?;
    }
    // A member may die between writing a version and announcing it. The first member therefore
    // announces all versions that are new to it.
    let is_first = view
        .members()
        .next()
        .is_some_and(|first| first == view.me());
    if is_first {
        for version in view.epoch() + 1..=members(store, keys)?.epoch() {
            announce(store, keys, version)?;
        }
    }
    Ok(())
}
