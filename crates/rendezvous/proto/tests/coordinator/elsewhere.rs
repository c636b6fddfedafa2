//! Members of a round whose coordinator was at another address.

use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::{Event, HeldRound, Operation};
use rdzv_rendezvous_proto::coordinator::{Origin, REATTACH_WITHIN, RECOVERY_WINDOW};

use crate::world::{ADDRESS, World, held_round};

const LONG: Duration = Duration::from_secs(60);
const HERE: &str = "10.0.0.2:29400";

fn held(rank: u32) -> Option<HeldRound> {
    Some(held_round(4, rank, 3))
}

/// Creates a coordinator at another address than its predecessor.
fn elsewhere(recover: bool) -> World {
    let mut world = World::restartable(1, 3);
    world.settings.last_call_timeout = Duration::ZERO;
    start(&mut world, recover);
    world
}

fn start(world: &mut World, recover: bool) {
    world.start_unnoted(Origin {
        addresses: [HERE.to_owned()].into(),
        recover,
        ..Origin::default()
    });
}

/// Lets time pass, in which these agents send heartbeats.
fn pass(world: &mut World, time: Duration, numbers: &[u32]) {
    for _ in 0..time.as_secs() {
        world.pass(Duration::from_secs(1));
        for number in numbers {
            world.operate(*number, &Operation::Heartbeat);
        }
    }
}

/// Returns the clusters and epochs that an agent must obey, and other events.
fn heard(world: &mut World, number: u32) -> (Vec<(u64, u32)>, Vec<Event>) {
    let (attached, others): (Vec<_>, Vec<_>) = world
        .take(number)
        .into_iter()
        .partition(|event| matches!(event, Event::Attached(_)));
    let clusters = attached.iter().map(|event| match event {
        Event::Attached(authority) => (authority.cluster, authority.epoch),
        other => panic!("{other:?}"),
    });
    (clusters.collect(), others)
}

fn is_over(events: &[Event]) -> bool {
    let mut events = events.iter();
    events.any(|event| matches!(event, Event::Membership { .. }))
}

#[test]
fn nobody_is_touched_and_people_hear_of_it() {
    let mut world = elsewhere(false);
    world.join(4);
    for number in 1..=3 {
        world.reattach(number, number, held(number - 1));
    }
    world.join(5);
    pass(&mut world, LONG, &[1, 2, 3, 4, 5]);
    for number in 1..=3 {
        assert_eq!(heard(&mut world, number), (vec![(7, 0)], vec![]));
    }
    // New agents wait, and obey the same coordinator.
    assert_eq!(heard(&mut world, 4).0, [(8, 0), (7, 0)]);
    assert_eq!(heard(&mut world, 5).0, [(7, 0)]);
    let said = &world.recoveries;
    assert!((6..=7).contains(&said.len()), "{said:?}");
    assert!(said[0].elapsed < Duration::from_secs(3), "{said:?}");
    let is_named = |it: &&_| {
        let it: &rdzv_rendezvous_proto::recovering::Recovering = it;
        it.elsewhere.as_deref() == Some(ADDRESS) && it.round == 4 && it.missing.is_empty()
    };
    assert!(said.iter().all(|it| is_named(&it)), "{said:?}");
    let note = world.note.as_ref().unwrap();
    assert_eq!((note.authority.cluster, note.runs.len()), (8, 0));
}

#[test]
fn members_of_this_version_say_it_too() {
    let mut world = elsewhere(false);
    world.reattach(1, 1, held(0));
    world.says_from = true;
    world.reattach(2, 2, held(1));
    pass(&mut world, Duration::from_secs(12), &[1, 2]);
    let address = ADDRESS.to_owned();
    let undecided = Event::Undecided { address };
    assert_eq!(heard(&mut world, 1).1, []);
    assert_eq!(heard(&mut world, 2).1, [undecided.clone(), undecided]);
}

#[test]
fn one_that_is_gone_may_be_where_its_coordinator_is() {
    let mut world = elsewhere(false);
    world.says_from = true;
    for number in 1..=3 {
        world.reattach(number, number, held(number - 1));
    }
    world.lose(2);
    world.end(3, Some(crate::world::peer_address(3)));
    world.pass(REATTACH_WITHIN * 2);
    world.reattach(12, 2, held(1));
    assert_eq!(heard(&mut world, 1).1, []);
    assert_eq!(heard(&mut world, 12), (vec![(7, 0)], vec![]));
}

#[test]
fn the_word_that_it_has_ended_makes_it_a_recovery() {
    // All agents reattach, or one has ended together with the coordinator.
    for count in [3, 2] {
        let mut world = elsewhere(false);
        for number in 1..=count {
            world.reattach(number, number, held(number - 1));
        }
        pass(&mut world, Duration::from_secs(5), &[1, 2, 3]);
        start(&mut world, true);
        for number in 1..=count {
            world.reattach(number, number, held(number - 1));
        }
        world.pass(RECOVERY_WINDOW);
        let authority = world.note.as_ref().unwrap().authority;
        assert_eq!((authority.cluster, authority.epoch), (7, 1));
        let (obeyed, others) = heard(&mut world, 1);
        assert_eq!((obeyed, is_over(&others)), (vec![(7, 1)], count < 3));
        assert!(world.recoveries.last().unwrap().is_over());
    }
}

#[test]
fn a_member_that_has_reached_it_here_proves_that_it_has_ended() {
    let mut world = elsewhere(false);
    world.reattach(1, 1, held(0));
    world.reattach(2, 2, held(1));
    pass(&mut world, Duration::from_secs(5), &[1, 2]);
    HERE.clone_into(&mut world.reached);
    world.reattach(3, 3, held(2));
    world.pass(Duration::from_secs(2));
    assert!(world.recoveries.last().unwrap().is_over());
    for (number, epoch) in [(1, 0), (2, 0), (3, 1)] {
        let (obeyed, others) = heard(&mut world, number);
        assert_eq!((obeyed, is_over(&others)), (vec![(7, epoch)], false));
    }
}

#[test]
fn a_coordinator_with_a_round_of_its_own_waits_for_nobody() {
    let mut world = elsewhere(false);
    world.join(4);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.formed(4).0, 0);
    world.reattach(1, 1, held(0));
    let (obeyed, others) = heard(&mut world, 1);
    assert_eq!(obeyed, [(8, 0)]);
    assert!(matches!(others[..], [Event::Membership { round: 4, .. }]));
}

#[test]
fn voters_wait_for_nobody_elsewhere() {
    let mut world = elsewhere(false);
    let origin = Origin {
        electors_heard: Some(world.now.mono),
        ..Origin::default()
    };
    world.start_unnoted(origin);
    world.reattach(1, 1, held(0));
    let (_, others) = heard(&mut world, 1);
    assert!(matches!(others[..], [Event::Membership { round: 4, .. }]));
}
