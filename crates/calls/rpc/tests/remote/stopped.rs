//! A worker that is alive and takes nothing, because it is stopped: its host still answers.

use std::time::Duration;

use rdzv_testing::NoLine;
use rustix::process::Signal;

use super::machines::{World, are_ready};

/// More than the systems of both sides take in, so that the window is closed.
const MUCH: usize = 32 << 20;

/// As often as the limit.
const LONG: Duration = Duration::from_secs(9);

#[test]
fn a_worker_that_is_stopped_is_not_lost_however_full_its_connection_is() {
    let Some(world) = World::new(2, 2) else {
        return;
    };
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&near, &far]);
    assert_eq!(near.ask("stall far 1"), "stalling");
    far.signal(Signal::STOP);
    near.send(&format!("send far {MUCH}"));
    // Nothing is waited for: it is to stay so.
    assert_eq!(near.stdout.line_within(LONG), Err(NoLine::Timeout));
    far.signal(Signal::CONT);
    let line = near.line();
    assert!(line.starts_with("send ok "), "{line}");
}

#[test]
fn the_host_of_a_stopped_worker_is_still_missed_when_it_vanishes() {
    let Some(world) = World::new(2, 2) else {
        return;
    };
    let near = world.start(&world.near, "near", 0);
    let far = world.start(&world.far, "far", 1);
    are_ready(&[&near, &far]);
    assert!(near.ask("echo far").starts_with("echo ok "));
    far.signal(Signal::STOP);
    near.send(&format!("send far {MUCH}"));
    assert_eq!(
        near.stdout.line_within(Duration::from_secs(1)),
        Err(NoLine::Timeout)
    );
    let cut = world.cut();
    let line = near.line();
    assert!(line.starts_with("send PeerLost "), "{line}");
    // Before Linux 6.15 the system asks a host that takes nothing less and less often.
    let most = Duration::from_secs(10);
    assert!(cut.elapsed() < most, "{:?}", cut.elapsed());
}
