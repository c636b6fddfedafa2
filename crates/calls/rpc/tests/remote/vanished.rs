//! The other host vanishes without a word: no power, or the link is cut.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdzv_testing::Process;
use rustix::process::Signal;

use super::machines::{FAR, World, are_ready};

/// Calls that are on their way.
const CALLS: usize = 64;

/// The default.
const LIMIT: u32 = 5;

/// How long after that references of who is gone are held: the time of grace of the program, and what
/// passes until it is looked at.
const GRACE: Duration = Duration::from_secs(5);

/// What processes of a busy machine may take to notice what is so.
const SLACK: Duration = Duration::from_secs(6);

/// The lines of a process until there are so many of each kind, by their first word.
fn collect(process: &Process, wanted: &[(&str, usize)]) -> BTreeMap<String, Vec<String>> {
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let have = |lines: &BTreeMap<String, Vec<String>>, what: &str| {
        lines.get(what).map_or(0, |lines| lines.len())
    };
    while wanted
        .iter()
        .any(|(what, count)| have(&lines, what) < *count)
    {
        let line = process.line();
        let first = line.split(' ').next().unwrap().to_owned();
        lines.entry(first).or_default().push(line);
    }
    lines
}

/// What the error of a lost call has to say.
fn names_the_host(line: &str) {
    assert!(line.contains(" PeerLost after "), "{line}");
    for word in ["(id=1, name=far)", &format!("{FAR}:"), "next call", " ms"] {
        assert!(line.contains(word), "no {word:?} in: {line}");
    }
}

fn within(limit: Duration, since: Instant) {
    let elapsed = since.elapsed();
    assert!(elapsed < limit + SLACK, "{elapsed:?} of {limit:?}");
}

#[test]
fn calls_to_a_host_that_vanishes_are_lost_within_the_heartbeat_limit() {
    if let Some(world) = World::new(3, LIMIT) {
        calls_are_lost_within_the_limit(&world, "tcp");
    }
}

#[test]
fn calls_by_tls_to_a_host_that_vanishes_are_lost_within_the_heartbeat_limit() {
    if let Some(world) = World::new(3, LIMIT) {
        calls_are_lost_within_the_limit(&world.with_tls(), "tls");
    }
}

/// What vanishes is the far host, which is called over this transport.
fn calls_are_lost_within_the_limit(world: &World, transport: &str) {
    let limit = Duration::from_secs(LIMIT.into());
    let peers = format!("peers: far by {transport}, neighbour by shared");
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    let neighbour = world.start(&world.near, "neighbour", 2);
    are_ready(&[&near, &far, &neighbour]);
    assert_eq!(near.ask("hold far"), "holding");
    assert_eq!(near.ask("stall neighbour 1"), "stalling");
    assert_eq!(far.ask("stall near 1"), "stalling");
    assert_eq!(near.ask(&format!("stall far {CALLS}")), "stalling");
    assert_eq!(near.ask("peers"), peers);

    // Long enough ago that nothing of it is on its way: this is the time that is measured.
    let cut = world.cut();
    // And one that nobody acknowledges.
    near.send("more far 1");
    let said = collect(&near, &[("stall", CALLS), ("more", 1), ("cancelled", 1)]);
    within(limit, cut);
    assert!(
        cut.elapsed() > Duration::from_secs(2),
        "{:?}",
        cut.elapsed()
    );
    for line in said["stall"].iter().chain(&said["more"]) {
        names_the_host(line);
        assert!(line.contains("heartbeat limit 5 s"), "{line}");
    }
    // The other one sees that nobody waits for its functions any more and that its own call is lost.
    let mut said = collect(&far, &[("cancelled", CALLS), ("stall", 1)]);
    within(limit, cut);
    assert!(said["stall"][0].contains(" PeerLost after "), "{said:?}");
    // And it gives back what was held from there, when a time of grace is over.
    if said.remove("dropped").is_none() {
        collect(&far, &[("dropped", 1)]);
    }
    within(limit + GRACE, cut);

    // Later calls try to connect, for no longer.
    let again = Instant::now();
    names_the_host(&near.ask("echo far"));
    within(limit, again);

    world.mend();
    let line = near.ask("echo far");
    assert!(line.starts_with("echo ok "), "{line}");
    let line = far.ask("echo near");
    assert!(line.starts_with("echo ok "), "{line}");
    // Nothing of that is about workers of the same host.
    assert_eq!(near.ask("peers"), peers);
    assert!(near.ask("echo neighbour").starts_with("echo ok "));
    drop(neighbour);
    assert!(near.line().starts_with("stall PeerLost "));
}

#[test]
fn what_is_on_its_way_when_a_host_vanishes_is_lost_within_the_limit() {
    let Some(world) = World::new(2, 2) else {
        return;
    };
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&near, &far]);
    assert!(near.ask("echo far").starts_with("echo ok "));
    let cut = world.cut();
    // More than the system takes: the rest waits for room.
    near.send("send far 33554432");
    let line = near.line();
    names_the_host(&line);
    assert!(line.contains("heartbeat limit 2 s"), "{line}");
    within(Duration::from_secs(2), cut);
}

#[test]
fn a_host_that_is_started_again_is_called_at_the_first_try() {
    let Some(world) = World::new(0, 2) else {
        return;
    };
    let near = world.start(&world.near, "near", 0);
    are_ready(&[&near]);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&far]);
    assert_eq!(near.ask("members 2"), "2 members");
    assert_eq!(near.ask(&format!("stall far {CALLS}")), "stalling");
    world.cut();
    // While nobody can hear it.
    far.signal(Signal::KILL);
    drop(far);
    let said = collect(&near, &[("stall", CALLS)]);
    said["stall"].iter().for_each(|line| names_the_host(line));
    world.mend();
    assert_eq!(near.ask("members 1"), "1 members");
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&far]);
    assert_eq!(near.ask("members 2"), "2 members");
    let line = near.ask("echo far");
    assert!(line.starts_with("echo ok "), "{line}");
}
