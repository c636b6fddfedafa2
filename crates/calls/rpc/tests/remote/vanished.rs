//! Tests of a host that vanishes without notice: power loss, or a cut cable.

use std::time::{Duration, Instant};

use rdzv_rpc::RpcErrorKind;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::machines::{FAR, World, are_ready};
use super::worker::{Failure, Worker};

/// Number of calls in flight.
const CALLS: usize = 64;

/// Default of the heartbeat limit, in seconds.
const LIMIT: u32 = 5;

/// Extra time after which references of a lost worker are released.
/// It is the setting of the program for this (1 s), plus the time until the next check.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);

/// Time that processes on a busy machine may need to notice an event.
const SLACK: Duration = Duration::from_secs(6);

/// Checks that the error of a lost call names the worker and the host.
fn names_the_host(error: &Failure) {
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error:?}");
    for word in ["(id=1, name=far)", &format!("{FAR}:"), "next call"] {
        assert!(error.text.contains(word), "no {word:?} in: {error:?}");
    }
}

fn echo(from: &Worker, to: &str) -> Result<Value, Failure> {
    from.calls(to, "double", json!(1))
}

fn within(limit: Duration, since: Instant) {
    let elapsed = since.elapsed();
    assert!(elapsed < limit + SLACK, "{elapsed:?} of {limit:?}");
}

#[test]
fn calls_to_a_host_that_vanishes_are_lost_within_the_heartbeat_limit() {
    if let Some(world) = World::new(Some(3), LIMIT) {
        calls_are_lost_within_the_limit(&world, "tcp");
    }
}

#[test]
fn calls_by_tls_to_a_host_that_vanishes_are_lost_within_the_heartbeat_limit() {
    if let Some(world) = World::new(Some(3), LIMIT) {
        calls_are_lost_within_the_limit(&world.with_tls(), "tls");
    }
}

/// Checks calls over this transport when the far host vanishes.
fn calls_are_lost_within_the_limit(world: &World, transport: &str) {
    let limit = Duration::from_secs(LIMIT.into());
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    let neighbour = world.start(&world.near, "neighbour", 2);
    are_ready(&[&near, &far, &neighbour]);
    let peers = || near.does(&json!({ "do": "traffic" }))["peers"].clone();
    let connected = json!([["far", transport], ["neighbour", "shared"]]);
    // The near worker holds a value of the far one.
    far.does(&json!({ "do": "lend", "to": "near" }));
    near.stalls("neighbour", "neighbour", 1);
    far.stalls("stall", "near", 1);
    near.stalls("stall", "far", CALLS);
    assert_eq!(peers(), connected);

    // All earlier packets have arrived by now: the measured time begins here.
    let cut = world.cut();
    // The other host never acknowledges this call.
    near.begins(&format!("stall{CALLS}"), "far", "wait");
    for number in 0..=CALLS {
        let error = near.loses(&format!("stall{number}"));
        names_the_host(&error);
        assert!(error.text.contains("heartbeat limit 5 s"), "{error:?}");
    }
    let cancelled = |worker: &Worker, times: usize| {
        let happened = json!({ "do": "happened", "what": "cancelled", "times": times });
        assert_eq!(worker.does(&happened), times);
    };
    cancelled(&near, 1);
    within(limit, cut);
    assert!(
        cut.elapsed() > Duration::from_secs(2),
        "{:?}",
        cut.elapsed()
    );
    // The far worker notices that the results of its functions are no longer needed and that its
    // own call is lost.
    cancelled(&far, CALLS);
    assert_eq!(far.loses("stall0").kind, RpcErrorKind::PeerLost);
    within(limit, cut);
    // The far worker also releases what it held from the near one, after its setting for this.
    assert_eq!(far.does(&json!({ "do": "left" })), Value::Null);
    within(limit + RELEASED_WITHIN, cut);

    // Later calls try to connect for the same time.
    let again = Instant::now();
    names_the_host(&echo(&near, "far").unwrap_err());
    within(limit, again);

    world.mend();
    echo(&near, "far").unwrap();
    echo(&far, "near").unwrap();
    // Workers of the same host are not affected.
    assert_eq!(peers(), connected);
    echo(&near, "neighbour").unwrap();
    drop(neighbour);
    assert_eq!(near.loses("neighbour0").kind, RpcErrorKind::PeerLost);
}

#[test]
fn what_is_on_its_way_when_a_host_vanishes_is_lost_within_the_limit() {
    let Some(world) = World::new(Some(2), 2) else {
        return;
    };
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&near, &far]);
    echo(&near, "far").unwrap();
    let cut = world.cut();
    // More bytes than the kernel accepts: the rest waits for room.
    let error = near.calls("far", "measure", json!(32 << 20)).unwrap_err();
    names_the_host(&error);
    assert!(error.text.contains("heartbeat limit 2 s"), "{error:?}");
    within(Duration::from_secs(2), cut);
}

#[test]
fn a_host_that_is_started_again_is_called_at_the_first_try() {
    let Some(world) = World::new(None, 2) else {
        return;
    };
    let near = world.start(&world.near, "near", 0);
    are_ready(&[&near]);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&far]);
    near.sees(&["near", "far"]);
    near.stalls("stall", "far", CALLS);
    world.cut();
    // Killed while no packet of it can arrive.
    far.signal(Signal::KILL);
    drop(far);
    (0..CALLS).for_each(|number| names_the_host(&near.loses(&format!("stall{number}"))));
    world.mend();
    near.sees(&["near"]);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&far]);
    near.sees(&["near", "far"]);
    echo(&near, "far").unwrap();
}
