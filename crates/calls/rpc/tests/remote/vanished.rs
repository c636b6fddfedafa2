//! The other host vanishes without a word: no power, or the link is cut.

use std::time::{Duration, Instant};

use rdzv_rpc::RpcErrorKind;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::machines::{FAR, World, are_ready};
use super::worker::{Failure, Worker};

/// Calls that are on their way.
const CALLS: usize = 64;

/// The default.
const LIMIT: u32 = 5;

/// How long after that references of who is gone are held: the time of grace of the program, and what
/// passes until it is looked at.
const GRACE: Duration = Duration::from_secs(5);

/// What processes of a busy machine may take to notice what is so.
const SLACK: Duration = Duration::from_secs(6);

/// What the error of a lost call has to say.
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

/// What vanishes is the far host, which is called over this transport.
fn calls_are_lost_within_the_limit(world: &World, transport: &str) {
    let limit = Duration::from_secs(LIMIT.into());
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    let neighbour = world.start(&world.near, "neighbour", 2);
    are_ready(&[&near, &far, &neighbour]);
    let peers = || near.does(&json!({ "do": "traffic" }))["peers"].clone();
    let connected = json!([["far", transport], ["neighbour", "shared"]]);
    // The near one holds a value of the far one.
    far.does(&json!({ "do": "lend", "to": "near" }));
    near.stalls("neighbour", "neighbour", 1);
    far.stalls("stall", "near", 1);
    near.stalls("stall", "far", CALLS);
    assert_eq!(peers(), connected);

    // Long enough ago that nothing of it is on its way: this is the time that is measured.
    let cut = world.cut();
    // And one that nobody acknowledges.
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
    // The other one sees that nobody waits for its functions any more and that its own call is
    // lost.
    cancelled(&far, CALLS);
    assert_eq!(far.loses("stall0").kind, RpcErrorKind::PeerLost);
    within(limit, cut);
    // And it gives back what was held from there, when a time of grace is over.
    assert_eq!(far.does(&json!({ "do": "left" })), Value::Null);
    within(limit + GRACE, cut);

    // Later calls try to connect, for no longer.
    let again = Instant::now();
    names_the_host(&echo(&near, "far").unwrap_err());
    within(limit, again);

    world.mend();
    echo(&near, "far").unwrap();
    echo(&far, "near").unwrap();
    // Nothing of that is about workers of the same host.
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
    // More than the system takes: the rest waits for room.
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
    // While nobody can hear it.
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
