//! Nodes whose workers have succeeded while other nodes of the round still run.

use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::REATTACH_WITHIN;
use rdzv_rendezvous_proto::coordinator::wire::{Event, HeldRound, Operation};

use crate::world::{World, forms, held_round};

const LONG: Duration = Duration::from_secs(60);

/// Agents 1 to `nodes` in round 0; the first agents have succeeded.
fn round_of(min: u32, nodes: u32, succeeded: u32) -> World {
    let mut world = World::restartable(min, nodes);
    for number in 1..=nodes {
        world.join(number);
    }
    let (round, addr, port) = (0, "n001".to_owned(), 4000);
    world.operate(1, &Operation::Master { round, addr, port });
    for number in 1..=succeeded {
        world.operate(number, &Operation::Succeeded { round: 0 });
    }
    for number in 1..=nodes {
        world.take(number);
    }
    world.attempt = 2;
    world
}

/// Returns the reasons that an agent has received for the end of its round.
fn reasons(world: &mut World, number: u32) -> Vec<String> {
    let events = world.take(number).into_iter();
    let reasons = events.filter_map(|event| match event {
        Event::Membership { reason, .. } => Some(reason),
        _ => None,
    });
    reasons.collect()
}

fn is_final(reason: &str) -> bool {
    reason.ends_with(", and the workers of all other nodes have succeeded")
}

#[test]
fn a_node_that_has_succeeded_joins_again_with_one_that_restarts() {
    let mut world = round_of(2, 2, 1);
    world.join(2);
    let received = reasons(&mut world, 1);
    assert_eq!(received.first().unwrap(), "node n002_1_0 joins again");
    assert!(!received.iter().any(|reason| is_final(reason)));
    world.join(1);
    assert_eq!(forms(&mut world, 1), Some(1));
    assert_eq!(forms(&mut world, 2), Some(1));
}

#[test]
fn a_node_that_has_succeeded_waits_for_the_decision_of_those_that_run() {
    let mut world = round_of(2, 3, 1);
    world.lose(3);
    world.pass(REATTACH_WITHIN);
    assert_eq!(reasons(&mut world, 1).len(), 1, "the loss");
    for _ in 0..4 {
        world.pass(Duration::from_secs(1));
        world.operate(1, &Operation::Heartbeat);
        world.operate(2, &Operation::Heartbeat);
        assert_eq!(
            reasons(&mut world, 1),
            [""; 0],
            "node 2 is stopping its workers"
        );
    }
    world.join(2);
    assert_eq!(reasons(&mut world, 1), ["node n002_1_0 waits to join"]);
}

#[test]
fn success_that_arrives_after_the_loss_of_another_node_is_answered() {
    let mut world = round_of(2, 3, 0);
    world.lose(3);
    world.pass(REATTACH_WITHIN);
    world.operate(1, &Operation::Succeeded { round: 0 });
    assert_eq!(reasons(&mut world, 1).len(), 1);
    world.join(2);
    assert_eq!(reasons(&mut world, 1), ["node n002_1_0 waits to join"]);
}

#[test]
fn nodes_that_have_succeeded_end_if_all_others_are_lost() {
    let mut world = round_of(3, 3, 2);
    world.lose(3);
    world.pass(REATTACH_WITHIN);
    for number in 1..=2 {
        assert!(!is_final(&reasons(&mut world, number)[0]));
    }
    // A restarted agent could take the place of agent 3.
    world.pass(Duration::from_secs(3));
    for number in 1..=2 {
        let received = reasons(&mut world, number);
        let [reason] = &received[..] else {
            panic!("{received:?}")
        };
        assert!(reason.starts_with("node n003_1_0 is lost"), "{reason}");
        assert!(is_final(reason), "{reason}");
    }
}

#[test]
fn a_restarted_agent_joins_the_next_round_with_those_that_have_succeeded() {
    let mut world = round_of(2, 2, 1);
    world.lose(2);
    world.pass(REATTACH_WITHIN);
    world.pass(Duration::from_secs(1));
    world.replaces = vec![2];
    world.join(3);
    let received = reasons(&mut world, 1);
    assert_eq!(received.last().unwrap(), "node n003_1_0 waits to join");
    world.pass(LONG);
    assert_eq!(reasons(&mut world, 1), [""; 0]);
}

#[test]
fn a_node_that_leaves_after_its_success_ends_no_round() {
    for is_killed in [false, true] {
        let mut world = round_of(1, 2, 1);
        world.operate(1, &Operation::Leave);
        assert_eq!(world.take(1), [Event::Left]);
        world.lose(1);
        // A newcomer does not take the place of the node, whose work is done.
        world.attempt = 1;
        world.join(3);
        assert_eq!(reasons(&mut world, 2), [""; 0]);
        if is_killed {
            world.restart();
            let held = held_round(0, 1, 2);
            world.reattach(2, 2, Some(held));
            world.pass(Duration::from_secs(5));
            world.operate(2, &Operation::Heartbeat);
            assert_eq!(reasons(&mut world, 2), [""; 0]);
        }
        world.operate(2, &Operation::Succeeded { round: 0 });
        let received = world.take(2);
        let all = Event::AllSucceeded { round: 0 };
        assert_eq!(received.last(), Some(&all), "{is_killed}: {received:?}");
    }
}

#[test]
fn a_node_whose_success_is_reported_to_a_new_coordinator_is_answered() {
    let mut world = round_of(2, 2, 1);
    world.restart();
    world.join(2);
    let held = HeldRound {
        succeeded: true,
        ..held_round(0, 0, 2)
    };
    world.reattach(1, 1, Some(held));
    let received = reasons(&mut world, 1);
    let last = received.last().unwrap();
    assert_eq!(last, "node n002_1_0 waits to join");
}
