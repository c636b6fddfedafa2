//! Agents whose process has certainly ended, as the end of their stream proves.

use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_rendezvous_proto::FencePolicy;
use rdzv_rendezvous_proto::coordinator::wire::{HeldRound, Operation};
use rdzv_rendezvous_proto::coordinator::{
    Coordinator, Input, LOST_AFTER_END, Origin, REATTACH_WITHIN,
};

use crate::world::{World, forms, held_round, origin, peer_address};

const LONG: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

fn held(rank: u32, size: u32) -> Option<HeldRound> {
    Some(held_round(0, rank, size))
}

/// Creates round 0 of at most `max` nodes with the first agents, and a spare.
fn with_spare(max: u32) -> World {
    let mut world = World::restartable(1, max);
    world.says_from = true;
    world.settings.last_call_timeout = Duration::ZERO;
    form(&mut world, max);
    // After this time, no member of an older round is expected.
    world.pass(Duration::from_secs(2));
    world
}

fn form(world: &mut World, max: u32) {
    for number in 1..=max + 1 {
        world.join(number);
    }
    let (round, addr, port) = (0, "n001".to_owned(), 4000);
    world.operate(1, &Operation::Master { round, addr, port });
    for number in 1..=max + 1 {
        world.take(number);
    }
    world.attempt = 2;
}

/// Voters elect a coordinator; their last contact with the previous one is now.
fn elect(world: &mut World) {
    let origin = Origin {
        electors_heard: Some(world.now.mono),
        ..origin()
    };
    let note = world.note.clone().unwrap();
    world.coordinator = Coordinator::restartable(world.now, note, origin);
    world.handle(Input::Voters(3));
}

/// Ends the process of an agent.
fn end(world: &mut World, number: u32) {
    world.end(number, Some(peer_address(u64::from(number))));
}

#[test]
fn a_round_of_which_all_agents_have_ended_is_over_when_their_workers_are_gone() {
    let mut world = with_spare(2);
    end(&mut world, 1);
    end(&mut world, 2);
    world.pass(LOST_AFTER_END - MOMENT);
    assert_eq!(forms(&mut world, 3), None);
    world.pass(MOMENT);
    assert_eq!(forms(&mut world, 3), Some(1));
    assert!(world.recoveries.is_empty(), "{:?}", world.recoveries);
}

#[test]
fn one_that_has_ended_is_enough_where_the_others_are_silent() {
    let mut world = with_spare(2);
    world.handle(Input::Silent(ConnId(1)));
    world.lose(1);
    end(&mut world, 2);
    world.pass(Duration::from_secs(4));
    assert_eq!(forms(&mut world, 3), Some(1));
}

#[test]
fn the_others_hear_of_it_after_60_ms() {
    let mut world = with_spare(3);
    end(&mut world, 2);
    world.pass(LOST_AFTER_END - MOMENT);
    assert!(world.take(1).is_empty());
    world.pass(MOMENT);
    let told = world.membership(1);
    assert!(
        told.ends_with("n002_1_0 is lost: its process has exited"),
        "{told}"
    );
}

#[test]
fn one_that_comes_back_within_that_time_is_where_it_was() {
    let mut world = with_spare(2);
    end(&mut world, 2);
    world.pass(LOST_AFTER_END - MOMENT);
    world.reattach(12, 2, held(1, 2));
    world.pass(REATTACH_WITHIN * 2);
    assert!(world.take(1).is_empty());
    // The earlier connection no longer has an effect.
    end(&mut world, 2);
    world.pass(REATTACH_WITHIN * 2);
    assert!(world.take(1).is_empty());
}

#[test]
fn whatever_else_ends_a_connection_proves_nothing() {
    type End = fn(&mut World, u32);
    let ends: [End; 6] = [
        // A reset.
        World::lose,
        |world, number| {
            world.handle(Input::Silent(ConnId(number)));
            world.lose(number);
        },
        // The agent closes the connection, but runs.
        |world, number| {
            world.operate(number, &Operation::Detach);
            end(world, number);
        },
        // There is a proxy, on the agent's machine or on another one.
        |world, number| world.end(number, Some(format!("10.0.1.{number}:50001"))),
        |world, number| world.end(number, Some("10.0.9.9:50000".to_owned())),
        |world, number| world.end(number, None),
    ];
    for ends in ends {
        let mut world = with_spare(2);
        ends(&mut world, 1);
        ends(&mut world, 2);
        world.pass(LOST_AFTER_END * 2);
        assert!(world.take(1).is_empty() && world.take(2).is_empty());
        world.pass(Duration::from_secs(4));
        assert!(world.note.as_ref().unwrap().runs["run"].silent);
        assert_eq!(forms(&mut world, 3), None);
    }
}

#[test]
fn agents_that_do_not_say_where_they_are_from_are_lost_as_before() {
    let mut world = World::restartable(1, 2);
    form(&mut world, 2);
    end(&mut world, 1);
    end(&mut world, 2);
    world.pass(LONG);
    assert_eq!(forms(&mut world, 3), None);
    assert!(world.note.as_ref().unwrap().runs["run"].silent);
}

#[test]
fn where_agents_have_a_fence_nobody_waits_for_its_end() {
    let mut world = World::restartable(1, 3);
    world.says_from = true;
    world.settings.fence = FencePolicy::Auto;
    elect(&mut world);
    form(&mut world, 3);
    world.pass(Duration::from_secs(2));
    for number in 1..=4 {
        world.operate(number, &Operation::Heartbeat);
    }
    world.lose(3);
    world.pass(Duration::from_secs(1));
    assert!(world.take(1).is_empty(), "its workers may run");
    end(&mut world, 2);
    world.pass(LOST_AFTER_END);
    assert!(world.membership(1).contains("n002"));
}

#[test]
fn a_round_with_a_fence_of_which_nobody_is_heard_of_by_the_next_coordinator_is_over() {
    for fence in [FencePolicy::Auto, FencePolicy::Off] {
        let mut world = World::restartable(1, 2);
        world.settings.fence = fence;
        world.settings.last_call_timeout = Duration::ZERO;
        elect(&mut world);
        form(&mut world, 2);
        world.pass(Duration::from_secs(2));
        // The agents of the round end while there is no coordinator.
        elect(&mut world);
        world.join(4);
        world.pass(Duration::from_secs(3));
        assert_eq!(forms(&mut world, 4), None);
        world.operate(4, &Operation::Heartbeat);
        world.pass(Duration::from_secs(3));
        let is_over = forms(&mut world, 4).is_some();
        assert_eq!(is_over, fence == FencePolicy::Auto);
    }
}

#[test]
fn one_that_has_ended_is_accounted_for_in_a_recovery_without_a_note() {
    for has_ended in [true, false] {
        let mut world = with_spare(3);
        world.start_unnoted(origin());
        world.reattach(1, 1, held(0, 3));
        world.reattach(2, 2, held(1, 3));
        if has_ended {
            end(&mut world, 1);
        } else {
            world.lose(1);
        }
        world.pass(Duration::from_secs(1));
        world.reattach(3, 3, held(2, 3));
        world.pass(Duration::from_secs(1));
        world.take(2);
        world.attempt = 3;
        world.join(2);
        world.join(3);
        world.pass(LONG);
        assert_eq!(forms(&mut world, 2).is_some(), has_ended);
    }
}
