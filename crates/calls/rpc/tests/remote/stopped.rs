//! Tests of a stopped worker: it reads nothing, but its host still answers.

use std::time::Duration;

use rdzv_rpc::RpcErrorKind;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::machines::{World, are_ready};

/// More bytes than both kernels buffer, so that the window is closed.
const MUCH: usize = 32 << 20;

/// Returns the call that sends these bytes.
fn much() -> Value {
    json!({ "do": "call", "to": "far", "method": "measure", "argument": MUCH })
}

/// Longer than the heartbeat limit.
const LONG: Duration = Duration::from_secs(9);

#[test]
fn a_worker_that_is_stopped_is_not_lost_however_full_its_connection_is() {
    let Some(world) = World::new(Some(2), 2) else {
        return;
    };
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&near, &far]);
    near.stalls("stall", "far", 1);
    far.signal(Signal::STOP);
    near.tell(&much());
    // The test checks that there is no answer for this time.
    assert!(near.is_silent_for(LONG));
    far.signal(Signal::CONT);
    assert_eq!(near.succeeds(), MUCH);
}

#[test]
fn the_host_of_a_stopped_worker_is_still_missed_when_it_vanishes() {
    let Some(world) = World::new(Some(2), 2) else {
        return;
    };
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&near, &far]);
    near.calls("far", "double", json!(1)).unwrap();
    far.signal(Signal::STOP);
    near.tell(&much());
    assert!(near.is_silent_for(Duration::from_secs(1)));
    let cut = world.cut();
    assert_eq!(near.answer().unwrap_err().kind, RpcErrorKind::PeerLost);
    // Before Linux 6.15, the kernel probes a host that accepts nothing at growing intervals.
    let most = Duration::from_secs(10);
    assert!(cut.elapsed() < most, "{:?}", cut.elapsed());
}
