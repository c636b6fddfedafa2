//! Single deaths, and the decisions of the group that survive them.

use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::{Authority, Event, HeldRound, Operation};
use rdzv_voters::Fact;

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// Forms a round of two agents at the coordinator of a new group.
fn round_of_two(world: &mut World) -> (usize, (u64, u32), u64) {
    let index = world.coordinator().unwrap();
    world.join(index, 0, 1);
    world.join(index, 1, 1);
    world.pass(SECOND);
    let formed = |events: Vec<Event>| {
        events.into_iter().find_map(|event| match event {
            Event::Formed { round, .. } => Some(round),
            _ => None,
        })
    };
    let round = formed(world.take(0)).unwrap();
    assert_eq!(formed(world.take(1)), Some(round));
    (index, world.authority(index), round)
}

fn held(round: u64, rank: u32) -> HeldRound {
    HeldRound {
        round,
        rank,
        master: Some(("agent0".to_owned(), 1)),
        succeeded: false,
        size: 2,
        host: None,
    }
}

/// Checks that the coordinator has accepted the agent and that its round holds.
fn attached(world: &mut World, agent: u32) -> Authority {
    let events = world.take(agent);
    match events[..] {
        [Event::Attached(authority)] | [Event::Attached(authority), Event::Master { .. }] => {
            authority
        }
        _ => panic!("{events:?}"),
    }
}

#[test]
fn a_group_is_founded_only_when_every_voter_is_there() {
    for endpoints in [3, 5] {
        let mut world = World::new(endpoints, 1);
        for index in (0..endpoints).rev() {
            assert!(world.coordinators().is_empty());
            world.start(index);
            world.pass(SECOND);
        }
        let coordinator = world.coordinator().unwrap();
        for index in 0..endpoints {
            let named = world.named_by(index);
            assert_eq!(named, Some(World::endpoint(coordinator)));
        }
    }
}

#[test]
fn a_coordinator_tells_the_agent_in_its_process_alone_that_it_is_there() {
    let mut world = World::new(3, 1);
    (0..3).for_each(|index| world.start(index));
    world.pass(SECOND);
    let index = world.coordinator().unwrap();
    assert!(index < 2, "one of the two agents is there");
    for agent in 0..2 {
        world.join(index, agent, 1);
        let events = world.take(agent);
        let told = events.iter().find_map(|event| match event {
            Event::Attached(authority) => Some(authority.in_process),
            _ => None,
        });
        assert_eq!(told, Some(agent as usize == index), "{agent} at {index}");
    }
}

#[test]
fn a_coordinator_beside_an_agent_hands_over_to_a_store_when_nothing_was_decided_for_a_second() {
    let mut world = World::new(3, 1);
    world.start(0);
    world.start(1);
    world.start_store(2);
    world.pass(SECOND / 2);
    let first = world.coordinator().unwrap();
    assert_ne!(first, 2);
    let (index, last, round) = round_of_two(&mut world);
    assert_eq!(index, first, "a round was being formed");
    world.pass(SECOND * 2);
    assert_eq!(world.coordinator(), Some(2));
    for agent in [0, 1] {
        assert!(world.dismissed.contains(&(first, agent)));
        world.reattach(2, agent, last, Some(held(round, agent)));
        assert_eq!(attached(&mut world, agent).cluster, last.0);
    }
    world.pass(SECOND * 10);
    assert_eq!(world.coordinator(), Some(2), "a store keeps it");
    for agent in [0, 1] {
        let told = world.take(agent);
        let holds = |event: &Event| matches!(event, Event::Master { .. });
        assert!(told.iter().all(holds), "the round holds: {told:?}");
    }

    // The store dies, one of the agents coordinates for a while, and the next store replaces it.
    world.kill(2);
    world.pass(SECOND);
    assert!(world.coordinator().is_some());
    world.start_store(2);
    world.pass(SECOND * 3);
    assert_eq!(world.coordinator(), Some(2));
}

#[test]
fn a_round_holds_when_its_coordinator_dies() {
    let mut world = World::founded(3);
    let (first, last, round) = round_of_two(&mut world);
    world.kill(first);
    world.pass(SECOND);
    let second = world.coordinator().unwrap();
    world.reattach(second, 0, last, Some(held(round, 0)));
    world.reattach(second, 1, last, Some(held(round, 1)));
    world.pass(SECOND * 10);
    for agent in [0, 1] {
        let authority = attached(&mut world, agent);
        assert_eq!(authority.cluster, last.0);
        assert!(authority.epoch > last.1);
    }
}

#[test]
fn a_round_is_over_for_the_others_if_one_of_it_dies_with_the_coordinator() {
    let mut world = World::founded(3);
    let (first, last, round) = round_of_two(&mut world);
    world.kill(first);
    world.pass(SECOND);
    let second = world.coordinator().unwrap();
    // Agent 0 reattaches with the round; agent 1 does not return.
    world.reattach(second, 0, last, Some(held(round, 0)));
    world.pass(SECOND * 2);
    let events = world.take(0);
    assert!(
        matches!(events[..], [Event::Attached(_)]),
        "the other agent still has time to return: {events:?}"
    );
    world.pass(SECOND);
    let is_over =
        |event: &Event| matches!(event, Event::Membership { round: of, .. } if *of == round);
    assert!(world.take(0).iter().any(is_over));
}

#[test]
fn a_run_that_is_over_stays_over() {
    let mut world = World::founded(3);
    let (first, last, round) = round_of_two(&mut world);
    let run = "run".to_owned();
    world.ask(first, 0, &Operation::Close { run });
    world.pass(SECOND);
    assert!(world.take(0).contains(&Event::Closed));
    world.kill(first);
    world.pass(SECOND);
    let second = world.coordinator().unwrap();
    world.reattach(second, 1, last, Some(held(round, 1)));
    assert!(world.take(1).contains(&Event::Closed));
}

#[test]
fn nothing_is_announced_that_the_next_coordinator_would_not_know() {
    let mut world = World::founded(3);
    let first = world.coordinator().unwrap();
    world.cut_off(&[first]);
    world.join(first, 0, 1);
    world.join(first, 1, 1);
    world.pass(Duration::from_millis(300));
    assert_eq!(world.announced.len(), 0);
    world.pass(SECOND * 2);
    // The coordinator has noticed the cut, and its agents search for another one.
    let others = world.coordinators();
    assert_eq!(others.len(), 1);
    assert_ne!(others[0], first);
    assert!(world.dismissed.contains(&(first, 0)) && world.dismissed.contains(&(first, 1)));
    world.heal();
    world.pass(SECOND);
    assert_eq!(world.coordinators(), others);
    assert_eq!(world.announced.len(), 0);
}

#[test]
fn a_minority_has_no_coordinator() {
    for (endpoints, few) in [(3, vec![0]), (3, vec![2]), (5, vec![0, 1]), (5, vec![3, 4])] {
        let mut world = World::founded(endpoints);
        world.cut_off(&few);
        world.pass(SECOND * 5);
        let coordinator = world.coordinator().unwrap();
        assert!(!few.contains(&coordinator));
        for index in few {
            assert_eq!(world.named_by(index), None);
        }
    }
}

#[test]
fn a_voter_is_replaced_again_and_again() {
    let mut world = World::founded(3);
    let (_, last, round) = round_of_two(&mut world);
    // More deaths than there were voters in the beginning.
    for _ in 0..8 {
        let dead = world.coordinator().unwrap();
        world.kill(dead);
        world.pass(Duration::from_millis(200));
        world.start(dead);
        world.pass(SECOND);
        assert!(world.coordinator().is_some());
    }
    let now = world.coordinator().unwrap();
    world.reattach(now, 0, last, Some(held(round, 0)));
    world.reattach(now, 1, last, Some(held(round, 1)));
    world.pass(SECOND * 5);
    for agent in [0, 1] {
        attached(&mut world, agent);
    }
    assert!(!world.facts.iter().any(|(_, fact)| *fact == Fact::GaveUp));
}

#[test]
fn a_new_process_founds_no_second_group_beside_the_one_that_lives() {
    let mut world = World::founded(3);
    let cluster = {
        let (_, (cluster, _), _) = round_of_two(&mut world);
        cluster
    };
    // The founder restarts without memory while the others cannot reach it, and reconnects later.
    world.kill(0);
    world.cut_off(&[0]);
    world.start(0);
    world.pass(SECOND * 5);
    assert!(world.coordinator().is_some_and(|index| index != 0));
    world.heal();
    world.pass(SECOND * 2);
    let index = world.coordinator().unwrap();
    world.join(index, 2, 1);
    world.pass(SECOND);
    world.take(2);
    assert_eq!(world.authority(index).0, cluster);
    assert_eq!(world.named_by(0), world.named_by(1));
}

#[test]
fn a_group_that_is_lost_is_founded_anew_and_its_rounds_are_given_up() {
    let mut world = World::founded(3);
    let (first, last, round) = round_of_two(&mut world);
    let other = (first + 1) % 3;
    world.kill(first);
    world.kill(other);
    world.pass(SECOND * 5);
    world.start(first);
    world.pass(SECOND * 5);
    // The third process may be alive somewhere.
    let gave_up = |world: &World| world.facts.iter().any(|(_, fact)| *fact == Fact::GaveUp);
    assert!(world.coordinators().is_empty() && !gave_up(&world));
    world.start(other);
    world.pass(SECOND * 5);
    let now = world.coordinator().unwrap();
    assert!(gave_up(&world));
    // The round numbers differ from earlier ones, although no agent has reported those.
    world.join(now, 2, 1);
    world.join(now, 3, 1);
    world.pass(SECOND * 5);
    let mut events = world.take(2).into_iter();
    let later = events.find_map(|event| match event {
        Event::Formed { round, .. } => Some(round),
        _ => None,
    });
    assert!(later.unwrap() > round, "{later:?}");
    world.reattach(now, 0, last, Some(held(round, 0)));
    let is_over =
        |event: &Event| matches!(event, Event::Membership { round: of, .. } if *of == round);
    assert!(world.take(0).iter().any(is_over));
}

#[test]
fn a_coordinator_that_ends_hands_over() {
    let mut world = World::founded(3);
    let (first, ..) = round_of_two(&mut world);
    world.end(first);
    world.pass(Duration::from_millis(100));
    let second = world.coordinator().unwrap();
    assert_ne!(second, first);
    assert!(world.dismissed.contains(&(first, 0)));
}

#[test]
fn of_three_voters_two_may_end_one_after_the_other() {
    let mut world = World::founded(3);
    let (first, ..) = round_of_two(&mut world);
    let second = (first + 1) % 3;
    let third = (first + 2) % 3;
    world.end(third);
    world.pass(Duration::from_millis(20));
    assert!(!world.hands_over(third), "it must not wait");
    world.kill(third);
    // The leader ends next, and only a learner is left.
    world.pass(Duration::from_millis(50));
    world.end(first);
    world.pass(Duration::from_millis(50));
    assert!(!world.hands_over(first));
    assert_eq!(world.coordinator(), Some(second));
    world.kill(first);
    world.pass(SECOND * 5);
    assert_eq!(world.coordinator(), Some(second));
    // Others join, and the group is complete again.
    world.start(first);
    world.start(third);
    world.pass(SECOND);
    world.kill(second);
    world.pass(SECOND * 2);
    assert!(world.coordinator().is_some());
}

#[test]
fn two_of_three_voters_may_end_at_the_same_time() {
    let mut world = World::founded(3);
    let (first, ..) = round_of_two(&mut world);
    let others: Vec<usize> = (0..3).filter(|index| *index != first).collect();
    others.iter().for_each(|index| world.end(*index));
    world.pass(Duration::from_millis(50));
    others.iter().for_each(|index| {
        assert!(!world.hands_over(*index));
        world.kill(*index);
    });
    world.pass(SECOND * 5);
    assert_eq!(world.coordinator(), Some(first));
}

#[test]
fn the_last_voter_waits_for_no_successor() {
    let mut world = World::founded(3);
    let (first, ..) = round_of_two(&mut world);
    world.end(first);
    for index in (0..3).filter(|index| *index != first) {
        assert!(world.hands_over(first));
        world.kill(index);
    }
    assert!(!world.hands_over(first));
}

#[test]
fn lists_in_different_orders_are_named_and_make_one_group() {
    let mut world = World::new(3, 1);
    world.start(0);
    world.start_with(1, [1, 0, 2].map(World::endpoint).to_vec());
    world.start(2);
    world.pass(SECOND * 5);
    assert!(world.coordinator().is_some());
    let is_named = |fact: &Fact| matches!(fact, Fact::Unsuitable { .. });
    let named = world.facts.iter().filter(|(_, fact)| is_named(fact));
    // Each process logs another one at most once, although they connect repeatedly.
    let named = named.count();
    assert!((1..=4).contains(&named), "{named}: {:?}", world.facts);
}
