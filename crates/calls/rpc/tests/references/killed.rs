//! Tests that the references of a killed worker are released.

use std::sync::Arc;

use rdzv_rpc::{
    Method, RRef, ReferenceCounters, ReferenceSettings, RpcAgent, RpcErrorKind, RpcOptions, Timeout,
};

use super::*;

const NUMBER: Method<u64, u64> = Method::new("number");
const KEEP: Method<RRef<u64>, ()> = Method::new("number.keep");

const LOST_AFTER: Duration = Duration::from_secs(1);

/// Lease that is longer than the time after which forks are released.
const LEASE: Duration = Duration::from_secs(30);

#[test]
fn the_forks_of_a_killed_user_are_released_and_the_values_of_a_killed_owner_are_lost() {
    let mut workers = Workers::new();
    let store: Arc<dyn Store> = Arc::new(workers.store());
    let options = RpcOptions {
        lease: LEASE,
        references: ReferenceSettings {
            lost_after: LOST_AFTER,
            ..ReferenceSettings::default()
        },
        ..RpcOptions::default()
    };
    let me = RpcAgent::builder("me").rank(1000).store(store);
    let agent = me.options(options).connect().unwrap();
    workers.start_with("idle");
    wait_for("it joins", LONG, || agent.worker("w0").is_ok());

    let held_there = RRef::new(&agent, 1_u64).unwrap();
    agent.call("w0", KEEP, &held_there).wait().unwrap();
    drop(held_there);
    let owned_there = agent.remote("w0", NUMBER, &2).unwrap();
    assert_eq!(owned_there.to_here(Timeout::Default).as_deref(), Ok(&2));
    let counters = agent.references();
    assert_eq!((counters.num_owner_rrefs, counters.num_forks), (1, 1));

    let mut killed = workers.running.remove(0);
    killed.kill();
    let begun = Instant::now();
    let error = owned_there.to_here(Timeout::Default).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
    assert!(begun.elapsed() < LEASE / 2, "{:?}", begun.elapsed());
    let within = LOST_AFTER + LEASE / 2;
    wait_for("its fork is released", within, || {
        agent.references().num_forks == 0
    });
    // From now on the state machine knows about the loss as well.
    let error = owned_there.to_here(Timeout::Default).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
    drop(owned_there);
    wait_for("nothing is left", within, || {
        agent.references() == ReferenceCounters::default()
    });
    agent.shutdown(Duration::from_secs(10)).unwrap();
}
