//! The fence of a round, and the agents that the coordinator waits for.

use std::time::Duration;

use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::FencePolicy;
use rdzv_rendezvous_proto::coordinator::wire::{Event, Operation, Standing};
use rdzv_rendezvous_proto::coordinator::{Input, REATTACH_WITHIN};
use rdzv_rendezvous_proto::fence::{lease, lost_after};

use crate::world::{World, held_round};

const ALL: [u32; 3] = [1, 2, 3];

/// Creates round 0 of three agents, with this number of voters.
fn formed(voters: u32, fence: FencePolicy) -> World {
    let mut world = World::restartable(1, 3);
    world.settings.fence = fence;
    world.settings.last_call_timeout = Duration::ZERO;
    world.settings.min_nodes = 3;
    world.handle(Input::Voters(voters));
    ALL.iter().for_each(|number| world.join(*number));
    world
}

fn reports(world: &mut World, agent: u32, standing: Standing) {
    let number = 1;
    world.operate(agent, &Operation::Lease { number, standing });
}

/// Returns the received events about the fence, in the order of the agents.
fn fences(world: &mut World) -> Vec<bool> {
    let events = ALL.iter().flat_map(|number| world.take(*number));
    let fences = events.filter_map(|event| match event {
        Event::Fence { round: 0, acts } => Some(acts),
        _ => None,
    });
    fences.collect()
}

fn recorded(world: &World) -> Duration {
    world.note.as_ref().unwrap().runs["run"].lease
}

/// Creates a round whose coordinator gets three voters and grants leases.
fn turned_on() -> World {
    let mut world = formed(1, FencePolicy::Auto);
    fences(&mut world);
    world.handle(Input::Voters(3));
    for number in ALL {
        reports(&mut world, number, Standing::Asks);
        reports(&mut world, number, Standing::Holds);
    }
    fences(&mut world);
    assert!(!recorded(&world).is_zero());
    world
}

/// `true` if the loss of agent 3 has ended the round.
fn is_over(world: &mut World) -> bool {
    let events = world.take(1);
    let over = |event: &Event| matches!(event, Event::Membership { .. });
    events.iter().any(over)
}

#[test]
fn a_round_of_three_voters_begins_with_a_fence() {
    let mut world = formed(3, FencePolicy::Auto);
    let events = world.take(1);
    let at = |wanted: fn(&Event) -> bool| events.iter().position(wanted);
    let fence = at(|event| matches!(event, Event::Fence { acts: true, .. }));
    let formed = at(|event| matches!(event, Event::Formed { .. }));
    assert!(fence.is_some() && fence < formed, "{events:?}");
    assert_eq!(recorded(&world), lease(Duration::from_secs(3), 3));
}

#[test]
fn a_round_has_no_fence_with_fewer_voters_or_unless_each_agent_accepts_one() {
    for (voters, fence) in [
        (2, FencePolicy::Auto),
        (3, FencePolicy::Off),
        (3, FencePolicy::Unsaid),
    ] {
        let mut world = formed(voters, fence);
        assert_eq!(fences(&mut world), [true; 0]);
        assert!(recorded(&world).is_zero());
    }
    let mut world = World::restartable(2, 2);
    world.handle(Input::Voters(3));
    world.settings.fence = FencePolicy::Auto;
    world.join(1);
    world.settings.fence = FencePolicy::Unsaid;
    world.join(2);
    assert_eq!(fences(&mut world), [true; 0]);
    assert!(recorded(&world).is_zero());
}

#[test]
fn the_fence_is_recorded_when_each_participant_has_a_lease() {
    let mut world = formed(1, FencePolicy::Auto);
    assert_eq!(fences(&mut world), [true; 0]);
    world.handle(Input::Voters(3));
    assert_eq!(fences(&mut world), [true; 3]);
    for number in ALL {
        reports(&mut world, number, Standing::Asks);
        assert_eq!(world.take(number), [Event::Backed { number: 1 }]);
        assert!(recorded(&world).is_zero());
        reports(&mut world, number, Standing::Holds);
    }
    assert_eq!(recorded(&world), lease(Duration::from_secs(3), 3));
}

#[test]
fn an_agent_that_may_have_a_lease_is_not_lost_before_its_end() {
    let mut world = turned_on();
    world.lose(3);
    // The fence is off, but agent 3 has not received that.
    world.handle(Input::Voters(1));
    assert!(recorded(&world).is_zero());
    assert_eq!(fences(&mut world), [false; 2]);
    let patience = lost_after(lease(Duration::from_secs(3), 3), Rules::default());
    world.pass(patience - Duration::from_millis(1));
    assert!(!is_over(&mut world));
    world.pass(Duration::from_millis(2));
    assert!(is_over(&mut world));
}

#[test]
fn an_agent_that_has_received_the_end_of_the_fence_is_lost_as_without_one() {
    let mut world = turned_on();
    world.handle(Input::Voters(2));
    assert_eq!(fences(&mut world), [false; 3]);
    reports(&mut world, 3, Standing::Lifted);
    world.lose(3);
    world.pass(REATTACH_WITHIN);
    assert!(is_over(&mut world));
}

#[test]
fn an_agent_that_reattaches_receives_the_state_of_the_fence() {
    for voters in [3, 1] {
        let mut world = turned_on();
        world.lose(3);
        world.handle(Input::Voters(voters));
        fences(&mut world);
        world.reattach(3, 3, Some(held_round(0, 2, 3)));
        assert_eq!(fences(&mut world), [voters == 3]);
    }
}

#[test]
fn nodes_with_different_choices_are_refused() {
    let mut world = World::restartable(1, 3);
    world.settings.fence = FencePolicy::Auto;
    world.join(1);
    world.settings.fence = FencePolicy::Off;
    world.join(2);
    let events = world.take(2);
    let refused = format!("{events:?}");
    assert!(
        refused.contains("with fence off, but node n001_1_0 with auto"),
        "{refused}"
    );
}
