//! A group that starts with one voter and that agents may join.

use std::time::Duration;

use rdzv_core::machine::Machine as _;
use rdzv_core::rules::Rules;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::Settings;
use rdzv_rendezvous_proto::coordinator::wire::{Authority, Event, HeldRound};
use rdzv_rendezvous_proto::coordinator::{Input, Note};
use rdzv_voters as voter;
use rdzv_voters::{Fact, Open, Output, Start, Voter};

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// Forms a round of agents `0..agents`; each has the index of its endpoint.
///
/// There are two more endpoints.
fn with_round(agents: u32, most: usize) -> World {
    let mut world = World::open(agents as usize + 2, most, 1);
    world.settings = Settings::new(agents, agents);
    for agent in 0..agents {
        world.join(0, agent, 1);
    }
    world.pass(SECOND);
    for agent in 0..agents {
        let formed = |event: &Event| matches!(event, Event::Formed { round: 0, .. });
        assert!(world.take(agent).iter().any(formed), "{agent}");
    }
    world
}

/// Returns the number of voters that a coordinator reported last.
fn voters(world: &World) -> Option<usize> {
    let mut facts = world.facts.iter().rev();
    facts.find_map(|(_, fact)| match fact {
        Fact::Voters { voters, .. } => Some(voters.len()),
        _ => None,
    })
}

/// Returns the first round, as the agent with this rank holds it.
fn held(rank: u32, size: u32) -> HeldRound {
    HeldRound {
        round: 0,
        rank,
        master: Some(("agent0".to_owned(), 1)),
        succeeded: false,
        size,
        host: None,
    }
}

/// Reattaches agents that hold the round of all agents.
///
/// Returns the authority that the last agent has received.
fn reattach(
    world: &mut World,
    agents: std::ops::Range<u32>,
    size: u32,
    last: (u64, u32),
) -> Authority {
    let index = world
        .coordinator()
        .unwrap_or_else(|| panic!("{:#?}", world.facts));
    let mut attached = None;
    for agent in agents {
        world.take(agent);
        world.reattach(index, agent, last, Some(held(agent, size)));
        let events = world.take(agent);
        attached = events.iter().find_map(|event| match event {
            Event::Attached(authority) => Some(*authority),
            _ => None,
        });
        assert!(attached.is_some(), "{events:?}");
    }
    attached.unwrap()
}

fn hears_of_the_end(events: &[Event]) -> bool {
    events
        .iter()
        .any(|event| matches!(event, Event::Membership { .. }))
}

#[test]
fn it_has_as_many_voters_as_there_are_nodes_for() {
    for (agents, most, expected) in [
        (1, 5, None),
        (2, 5, Some(1)),
        (3, 5, Some(3)),
        (4, 5, Some(3)),
        (5, 5, Some(5)),
        (6, 5, Some(5)),
        (5, 3, Some(3)),
        (3, 1, None),
    ] {
        let world = with_round(agents, most);
        assert_eq!(voters(&world), expected, "{agents} agents, at most {most}");
        assert_eq!(world.coordinator(), Some(0));
    }
}

#[test]
fn an_agent_that_looks_nowhere_else_keeps_it_at_one_voter() {
    let mut world = World::open(6, 5, 1);
    world.settings = Settings::new(4, 4);
    world.of_before.insert(3);
    (0..4).for_each(|agent| world.join(0, agent, 1));
    world.pass(SECOND * 10);
    assert_eq!(voters(&world), Some(1));
    assert_eq!(world.coordinator(), Some(0));
}

#[test]
fn another_voter_coordinates_when_the_first_one_dies_which_votes_again_after_that() {
    let mut world = with_round(3, 5);
    let last = world.authority(0);
    world.kill(0);
    world.pass(SECOND / 5);
    let second = world.coordinator().unwrap();
    assert_ne!(second, 0);
    world.start(0);
    world.pass(SECOND);
    assert_eq!(world.coordinator(), Some(second));
    assert_eq!(voters(&world), Some(3));
    let authority = reattach(&mut world, 1..3, 3, last);
    assert_eq!(authority.cluster, last.0);
    assert!(authority.epoch > last.1);
    assert_eq!(world.named_by(0), Some(World::endpoint(second)));
}

#[test]
fn a_voter_that_stays_away_is_replaced_or_the_group_shrinks() {
    let mut world = with_round(4, 5);
    assert_eq!(voters(&world), Some(3));
    world.lose(1);
    world.pass(SECOND * 2);
    assert_eq!(voters(&world), Some(3), "the fourth takes its index");
    world.lose(2);
    world.pass(SECOND * 4);
    assert_eq!(voters(&world), Some(1), "of two, one votes");
    assert_eq!(world.coordinator(), Some(0));
    world.lose(3);
    world.pass(SECOND * 4);
    world.kill(0);
    world.start(0);
    world.pass(SECOND / 100);
    assert_eq!(world.coordinator(), Some(0), "nothing else is needed");
}

#[test]
fn a_voter_that_is_gone_does_not_count_and_one_that_nobody_replaces_is_removed() {
    let mut world = with_round(4, 5);
    // A node is lost with its keeper, and restarts at another address. The next node does the same.
    for (lost, new) in [(1, 4), (2, 5)] {
        world.lose(lost);
        world.join(0, new, 1);
        world.pass(SECOND / 2);
        assert_eq!(voters(&world), Some(3), "{}", world.story());
    }
    // The process at the endpoint dies with its machine too: the other two of three continue.
    world.lose(0);
    world.pass(SECOND);
    let second = world.coordinator().unwrap();
    world.start(0);
    world.pass(SECOND * 2);
    assert_eq!(world.coordinator(), Some(second));
    assert_eq!(voters(&world), Some(3), "{}", world.story());
}

#[test]
fn the_only_voter_goes_on_from_its_note() {
    for agents in [1, 2] {
        let mut world = with_round(agents, 5);
        let last = world.authority(0);
        world.kill(0);
        world.pass(SECOND);
        assert_eq!(
            world.coordinator(),
            None,
            "a learner alone does not take over"
        );
        world.start(0);
        world.pass(SECOND / 20);
        let authority = reattach(&mut world, 0..agents, agents, last);
        assert_eq!(authority.cluster, last.0);
        assert!(authority.epoch > last.1);
        world.pass(SECOND * 10);
        assert!((0..agents).all(|agent| !hears_of_the_end(&world.take(agent))));
    }
}

#[test]
fn the_only_voter_hands_over_to_the_one_that_learns_when_it_ends() {
    let mut world = with_round(2, 5);
    let last = world.authority(0);
    world.end(0);
    world.pass(SECOND * 3 / 10);
    assert!(!world.hands_over(0), "it ends within 300 ms");
    world.kill(0);
    world.pass(SECOND / 10);
    assert_eq!(world.coordinator(), Some(1));
    let authority = reattach(&mut world, 1..2, 2, last);
    assert_eq!(authority.cluster, last.0);
    // The new process needs nothing from the old one.
    world.lose(0);
    world.pass(SECOND * 4);
    assert_eq!(world.coordinator(), Some(1));
    world.kill(1);
    world.start(1);
    world.pass(SECOND / 20);
    assert_eq!(
        world.coordinator(),
        Some(1),
        "its record shows that it is alone"
    );
}

#[test]
fn if_the_other_one_dies_while_it_takes_over_the_job_waits_for_it() {
    // The only voter ends, and its successor is killed after this number of milliseconds.
    let mut seen = 0;
    for after in 1..20 {
        let mut world = with_round(2, 5);
        world.end(0);
        world.pass(Duration::from_millis(after));
        world.kill(1);
        world.pass(SECOND);
        world.kill(0);
        world.notes.remove(&0);
        world.pass(SECOND * 2);
        assert_eq!(world.coordinator(), None, "after {after} ms");
        world.start(1);
        world.pass(SECOND);
        seen += u32::from(world.coordinator() == Some(1));
    }
    // If the successor took over before it died, its record lets it continue.
    assert!(seen > 0);
}

#[test]
fn a_new_process_at_the_endpoint_joins_the_group_that_went_on_without_it() {
    let mut world = with_round(3, 5);
    let last = world.authority(0);
    world.lose(0);
    world.pass(SECOND * 3);
    let second = world.coordinator().unwrap();
    world.start(0);
    world.pass(SECOND);
    assert_eq!(world.coordinator(), Some(second), "{:#?}", world.facts);
    assert_eq!(voters(&world), Some(3));
    let authority = reattach(&mut world, 1..3, 3, last);
    assert_eq!(authority.cluster, last.0);
}

#[test]
fn of_two_nodes_the_new_process_at_the_endpoint_coordinates_and_the_one_that_learned_follows() {
    let mut world = with_round(2, 5);
    world.lose(0);
    world.pass(SECOND * 3);
    assert_eq!(world.coordinator(), None);
    world.start(0);
    world.pass(SECOND);
    assert_eq!(world.coordinator(), Some(0), "{}", world.story());
    (0..2).for_each(|agent| world.join(0, agent, 2));
    world.pass(SECOND * 3);
    // The round number is not an earlier one.
    let formed = |event: &Event| matches!(event, Event::Formed { round: 1.., .. });
    assert!(world.take(1).iter().any(formed));
    world.end(0);
    world.pass(SECOND);
    assert_eq!(world.coordinator(), Some(1), "{}", world.story());
}

#[test]
fn the_new_process_at_the_endpoint_does_not_follow_one_that_only_learned() {
    let mut world = with_round(2, 5);
    world.pass(3 * SECOND);
    world.lose(0);
    // The learner is still in the old group.
    world.start(0);
    world.pass(Duration::from_millis(200));
    assert_eq!(world.coordinator(), Some(0));
    world.pass(5 * SECOND);
    assert_eq!(world.coordinator(), Some(0), "{}", world.story());
}

#[test]
fn the_new_process_at_the_endpoint_knows_that_the_coordinator_there_has_ended() {
    let mut world = with_round(2, 5);
    let last = world.authority(0);
    world.lose(0);
    world.pass(SECOND * 3);
    world.start(0);
    // The process that has learned starts before its agent.
    world.pass(SECOND);
    world.take(1);
    world.reattach(0, 1, last, Some(held(1, 2)));
    world.pass(SECOND * 5);
    let events = world.take(1);
    let undecided = |event: &Event| matches!(event, Event::Undecided { .. });
    assert!(!events.iter().any(undecided), "{events:?}");
    assert!(hears_of_the_end(&events), "{events:?}");
}

#[test]
fn if_all_voters_end_at_once_one_goes_on_from_its_note_when_all_are_back() {
    for away in [1, 2] {
        let mut world = with_round(4, 5);
        let last = world.authority(0);
        // The last process, which is no voter, holds the round.
        (0..3).for_each(|index| world.kill(index));
        world.pass(SECOND);
        (0..3)
            .filter(|index| *index != away)
            .for_each(|index| world.start(index));
        world.pass(SECOND * 5);
        assert_eq!(
            world.coordinator(),
            None,
            "a member with newer data is missing"
        );
        world.start(away);
        world.pass(SECOND);
        let authority = reattach(&mut world, 3..4, 4, last);
        assert_eq!(authority.cluster, last.0);
        assert!(authority.epoch > last.1);
        assert_eq!(voters(&world), Some(3));
    }
}

#[test]
fn two_of_three_voters_that_end_at_once_come_back() {
    let mut world = with_round(3, 5);
    let last = world.authority(0);
    world.kill(0);
    world.kill(1);
    world.pass(SECOND);
    assert_eq!(world.coordinator(), None);
    world.start(0);
    world.start(1);
    world.pass(SECOND * 2);
    let authority = reattach(&mut world, 2..3, 3, last);
    assert_eq!(authority.cluster, last.0);
    assert_eq!(voters(&world), Some(3));
}

#[test]
fn a_minority_decides_nothing() {
    let mut world = with_round(5, 5);
    world.cut_off(&[0, 1]);
    world.pass(SECOND * 10);
    let majority = world.coordinator().unwrap();
    assert!(majority > 1);
    world.heal();
    world.pass(SECOND * 3);
    assert_eq!(world.coordinator(), Some(majority));
    assert_eq!(voters(&world), Some(5));
}

#[test]
fn a_process_that_has_not_begun_greets_nobody() {
    // The others would take this process for one that remembers nothing.
    let note = Note {
        voters: vec!["n1:29400".to_owned()],
        ..Note::new(7, SECOND)
    };
    let start = Start::Returns {
        note: Box::new(note),
    };
    let mut voter = Voter::new(voter::Settings {
        endpoints: vec!["n0:29400".to_owned(), "n1:29400".to_owned()],
        open: Some(Open {
            run: "run".to_owned(),
            most: 5,
            start,
        }),
        own: 0,
        is_store: false,
        agent: None,
        seed: 1,
        timeout: SECOND,
        node_timeout: SECOND,
        rules: Rules::default(),
    });
    assert_eq!(voter.poll_output(), None);
    voter.handle(Now::default(), Input::Tick);
    assert!(matches!(voter.poll_output(), Some(Output::Greet(_))));
}
