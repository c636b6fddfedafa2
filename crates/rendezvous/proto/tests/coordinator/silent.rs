//! Rounds whose participants are all silent.

use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_rendezvous_proto::coordinator::wire::{Event, HeldRound, Operation};
use rdzv_rendezvous_proto::coordinator::{Coordinator, Input, Origin, REATTACH_WITHIN};

use crate::world::{World, forms, held_round, origin};

const LONG: Duration = Duration::from_secs(60);

fn held(rank: u32) -> Option<HeldRound> {
    Some(held_round(0, rank, 2))
}

/// Creates round 0 of agents 1 and 2, which is full, with agent 3 as a spare.
fn with_spare(min: u32) -> World {
    let mut world = World::restartable(min, 2);
    for number in 1..=3 {
        world.join(number);
    }
    let (round, addr, port) = (0, "n001".to_owned(), 4000);
    world.operate(1, &Operation::Master { round, addr, port });
    for number in 1..=3 {
        world.take(number);
    }
    world.attempt = 2;
    world
}

/// Breaks the connections of these agents, which do not reattach in time.
fn lose(world: &mut World, numbers: &[u32]) {
    for number in numbers {
        world.lose(*number);
    }
    world.pass(REATTACH_WITHIN + Duration::from_millis(1));
}

/// Lets time pass, in which only agents outside the round send heartbeats.
fn pass(world: &mut World, time: Duration) {
    for _ in 0..time.as_secs() {
        world.pass(Duration::from_secs(1));
        for number in 3..6 {
            world.operate(number, &Operation::Heartbeat);
        }
    }
}

fn hears_that_it_is_over(world: &mut World, number: u32) -> bool {
    let events = world.take(number);
    let mut over = events.iter();
    over.any(|event| matches!(event, Event::Membership { round: 0, .. }))
}

#[test]
fn no_round_forms_while_all_participants_of_the_last_one_are_silent() {
    let mut world = with_spare(1);
    lose(&mut world, &[1, 2]);
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 3), None);
    let note = &world.note.as_ref().unwrap().runs["run"];
    assert_eq!((note.silent, &note.members[..]), (true, &[1, 2][..]));
    // There is a message within one second, and then every 10 s.
    let said = &world.recoveries;
    assert!((6..=7).contains(&said.len()), "{said:?}");
    assert!(said[0].elapsed < Duration::from_secs(1), "{said:?}");
    assert_eq!(said[0].missing, [0, 1]);
    let text = said[0].to_string();
    assert!(text.contains("group ranks 0 (n001), 1 (n002)"), "{text}");
    assert!(text.contains("recover=true"), "{text}");
}

#[test]
fn a_machine_that_is_silent_has_not_left() {
    let mut world = with_spare(1);
    for number in [1, 2] {
        world.handle(Input::Silent(ConnId(number)));
        world.lose(number);
    }
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 3), None);
}

#[test]
fn a_round_waits_for_the_workers_of_one_that_comes_back() {
    let mut world = with_spare(1);
    lose(&mut world, &[1, 2]);
    pass(&mut world, LONG);
    world.reattach(12, 2, held(1));
    assert!(hears_that_it_is_over(&mut world, 12));
    pass(&mut world, Duration::from_secs(5));
    assert_eq!(forms(&mut world, 3), None, "its workers may run");
    world.join_as(12, crate::world::node(2), 2);
    assert_eq!(forms(&mut world, 12), Some(1));
    assert_eq!(forms(&mut world, 3), Some(1));
    assert!(!world.note.as_ref().unwrap().runs["run"].silent);
    let last = world.recoveries.last().unwrap();
    assert!(last.missing.is_empty(), "{last:?}");
}

#[test]
fn one_that_comes_back_and_is_lost_again_is_one_of_those_that_are_waited_for() {
    let mut world = with_spare(1);
    lose(&mut world, &[1, 2]);
    world.reattach(12, 2, held(1));
    lose(&mut world, &[12]);
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 3), None);
    // The other agent ends the wait as well.
    world.reattach(11, 1, held(0));
    assert!(hears_that_it_is_over(&mut world, 11));
    world.operate(11, &Operation::Leave);
    world.pass(LONG);
    assert_eq!(forms(&mut world, 3), Some(1));
}

#[test]
fn one_that_does_not_hold_the_round_any_more_ends_the_wait() {
    let ends: [fn(&mut World); 3] = [
        |world| world.reattach(12, 2, None),
        |world| world.leave_again(12, 2),
        |world| {
            world.replaces = vec![2];
            world.join(4);
        },
    ];
    for end in ends {
        let mut world = with_spare(1);
        lose(&mut world, &[1, 2]);
        pass(&mut world, LONG);
        assert_eq!(forms(&mut world, 3), None);
        end(&mut world);
        pass(&mut world, LONG);
        assert_eq!(forms(&mut world, 3), Some(1));
    }
}

#[test]
fn a_round_that_somebody_has_left_is_over_when_the_others_are_silent() {
    let leaves: [fn(&mut World); 5] = [
        |world| world.operate(1, &Operation::Leave),
        |world| world.join(1),
        |world| world.operate(1, &Operation::Succeeded { round: 0 }),
        |world| {
            world.replaces = vec![1];
            world.join(4);
            world.replaces.clear();
        },
        // The agent was lost, and reports that it no longer holds the round.
        |world| {
            lose(world, &[1]);
            world.reattach(11, 1, None);
        },
    ];
    for leave in leaves {
        let mut world = with_spare(1);
        leave(&mut world);
        lose(&mut world, &[1, 2]);
        pass(&mut world, LONG);
        assert_eq!(forms(&mut world, 3), Some(1));
        assert!(world.recoveries.is_empty(), "{:?}", world.recoveries);
    }
}

#[test]
fn the_next_coordinator_waits_for_the_same_agents_and_one_is_enough() {
    let mut world = with_spare(1);
    lose(&mut world, &[1, 2]);
    world.restart();
    world.reattach(3, 3, None);
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 3), None);
    let said = &world.recoveries;
    assert_eq!(said.last().unwrap().missing, [0, 1], "{said:?}");
    world.reattach(11, 1, held(0));
    assert!(hears_that_it_is_over(&mut world, 11));
    pass(&mut world, Duration::from_secs(5));
    assert_eq!(forms(&mut world, 3), None);
    world.operate(11, &Operation::Leave);
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 3), Some(1));
}

#[test]
fn one_that_a_coordinator_before_has_lost_is_known_by_its_round() {
    let mut world = with_spare(1);
    // Agent 2 receives that the round is over; then the coordinator dies.
    lose(&mut world, &[1]);
    world.restart();
    world.reattach(3, 3, None);
    world.reattach(12, 2, held(1));
    assert!(hears_that_it_is_over(&mut world, 12));
    lose(&mut world, &[12]);
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 3), None);
    assert_eq!(world.recoveries.last().unwrap().missing, [1]);
    // Agent 1 is no longer in a record.
    world.reattach(11, 1, held(0));
    assert!(hears_that_it_is_over(&mut world, 11));
    world.join_as(11, crate::world::node(1), 1);
    assert_eq!(forms(&mut world, 11), Some(1));
}

#[test]
fn those_that_come_while_nobody_is_there_wait_too() {
    let mut world = with_spare(1);
    world.operate(3, &Operation::Leave);
    lose(&mut world, &[1, 2]);
    world.join(4);
    world.join(5);
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 4), None);
    world.reattach(11, 1, None);
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 4), Some(1));
}

#[test]
fn the_word_that_they_have_ended_ends_the_wait_and_counts_for_no_later_one() {
    let mut world = with_spare(1);
    lose(&mut world, &[1, 2]);
    let note = world.note.as_mut().unwrap();
    note.authority.epoch += 1;
    let word = Origin {
        recover: true,
        ..origin()
    };
    world.coordinator = Coordinator::restartable(world.now, note.clone(), word);
    world.received.clear();
    world.reattach(3, 3, None);
    pass(&mut world, LONG);
    assert_eq!(forms(&mut world, 3), Some(1));
    // The user has confirmed nothing about this round.
    world.join(6);
    world.operate(3, &Operation::Heartbeat);
    world.take(6);
    lose(&mut world, &[3]);
    world.pass(LONG);
    assert_eq!(forms(&mut world, 6), None);
}

#[test]
fn a_run_that_is_closed_waits_for_nobody() {
    let mut world = with_spare(1);
    lose(&mut world, &[1, 2]);
    world.close(3);
    let note = &world.note.as_ref().unwrap().runs["run"];
    assert_eq!((note.closed, note.silent), (true, false));
    world.reattach(11, 1, held(0));
    let events = world.take(11);
    assert!(matches!(events[..], [Event::Closed]), "{events:?}");
}
