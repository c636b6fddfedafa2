//! Native agents and agents of torchrun in one round.
//!
//! Agents of torchrun know only the keys of the run: the state, and the keys of each round.

use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::{Event, Operation};
use rdzv_rendezvous_proto::decide::Action;

use crate::world::{STATE, World, node};

fn master(round: u64, port: u16) -> Event {
    Event::Master {
        round,
        addr: "n000".to_owned(),
        port,
    }
}

/// Creates round 0 of agent 0 of torchrun and native agent 1.
fn torchrun_first() -> World {
    let mut world = World::new(2, 2);
    world.torchrun(&node(0), Action::AddToParticipants);
    world.join(1);
    assert_eq!(world.formed(1), (0, 1, 2));
    let (state, _) = world.read();
    assert!(state.complete);
    assert_eq!(state.participants[&node(0)], 0);
    world
}

#[test]
fn a_native_agent_completes_a_round_with_a_torchrun_one() {
    torchrun_first();
}

#[test]
fn a_torchrun_agent_completes_a_round_with_a_native_one() {
    let mut world = World::new(2, 2);
    world.join(0);
    world.torchrun(&node(1), Action::AddToParticipants);
    let received = world.take(0);
    let [
        Event::Formed {
            rank,
            world_size,
            assignment,
            ..
        },
    ] = &received[..]
    else {
        panic!("{received:?}");
    };
    assert_eq!((*rank, *world_size), (0, 2));
    // Only the agent of torchrun knows its number of workers.
    assert_eq!(*assignment, None);
}

#[test]
fn agents_exchange_ranks_themselves_if_one_does_not_know_what_it_starts() {
    let mut world = World::new(2, 2);
    world.join(0);
    world.join_without_size(1);
    for number in 0..2 {
        let received = world.take(number);
        let [
            Event::Formed {
                rank, assignment, ..
            },
        ] = &received[..]
        else {
            panic!("{received:?}");
        };
        assert_eq!((*rank, *assignment), (number, None));
    }
}

#[test]
fn a_torchrun_write_fails_if_the_state_has_moved_on() {
    let mut world = World::new(3, 3);
    world.join(0);
    let (state, token) = world.read();
    world.join(1);
    assert!(!world.compare_set(&token, &state));
    world.torchrun(&node(2), Action::AddToParticipants);
    assert_eq!(world.formed(1), (0, 1, 3));
}

#[test]
fn what_a_torchrun_rank_0_stores_is_announced() {
    let mut world = torchrun_first();
    world.set("0/MASTER_ADDR", "n000");
    assert_eq!(world.take(1), []);
    world.set("0/MASTER_PORT", "4000");
    assert_eq!(world.take(1), [master(0, 4000)]);
}

#[test]
fn a_torchrun_rank_0_that_stores_nothing_is_where_it_was() {
    let mut world = torchrun_first();
    world.set("0/MASTER_ADDR", "n000");
    world.set("0/MASTER_PORT", "4000");
    world.take(1);
    // The native agent restarts its workers; the agent of torchrun follows.
    world.join(1);
    world.torchrun(&node(0), Action::RemoveFromParticipants);
    world.torchrun(&node(0), Action::AddToParticipants);
    assert_eq!(world.formed(1), (1, 1, 2));
    world.set("1/torchelastic/role_info/0", "{}");
    assert_eq!(world.take(1), [master(1, 4000)]);
}

#[test]
fn without_a_role_earlier_rounds_count_after_a_while() {
    let mut world = World::new(2, 2);
    // These keys are from a round before the first native agent.
    for (key, value) in [("MASTER_ADDR", "n000"), ("MASTER_PORT", "4000")] {
        let key = format!("{STATE}.0/{key}").into_bytes();
        world.keys.insert(key, value.as_bytes().to_vec());
    }
    world.torchrun(&node(0), Action::AddToParticipants);
    world.join(1);
    world.formed(1);
    for _ in 0..10 {
        world.torchrun(&node(0), Action::KeepAlive);
        world.pass_beating(1, &[]);
        world.operate(1, &Operation::Heartbeat);
    }
    assert!(world.take(1).contains(&master(0, 4000)));
}

#[test]
fn native_agents_look_alive_to_torchrun_ones() {
    let mut world = torchrun_first();
    for _ in 0..10 {
        world.torchrun(&node(0), Action::KeepAlive);
        world.pass_beating(4, &[1]);
        let (state, _) = world.read();
        let heard = state.last_heartbeats[&node(1)];
        assert!(world.now.wall - Duration::from_secs(6) < heard);
    }
}

#[test]
fn a_torchrun_agent_whose_heartbeats_stop_is_lost_whatever_its_clock_says() {
    let mut world = torchrun_first();
    // The clock of the agent is one hour ahead.
    let (mut state, token) = world.read();
    let heard = world.now.wall + Duration::from_secs(3600);
    state.last_heartbeats.insert(node(0), heard);
    assert!(world.compare_set(&token, &state));
    world.pass_beating(14, &[1]);
    world.pass(Duration::from_secs(1));
    let reason = world.membership(1);
    assert!(reason.contains("n000_1_0 is lost"), "{reason}");
}

#[test]
fn a_torchrun_newcomer_and_a_torchrun_leaver_are_announced() {
    let mut world = World::new(1, 3);
    world.torchrun(&node(0), Action::AddToParticipants);
    world.join(1);
    world.pass_beating(14, &[1]);
    world.torchrun(&node(0), Action::KeepAlive);
    world.pass_beating(14, &[1]);
    world.torchrun(&node(0), Action::KeepAlive);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.formed(1), (0, 1, 2));
    world.torchrun(&node(2), Action::AddToWaitList);
    assert_eq!(world.membership(1), "node n002_1_0 waits to join");
    world.join(1);
    world.torchrun(&node(0), Action::RemoveFromParticipants);
    // The next round forms; the agents of torchrun join without an event.
    world.torchrun(&node(0), Action::AddToParticipants);
    assert_eq!(world.take(1), []);
    world.torchrun(&node(2), Action::AddToParticipants);
    assert_eq!(world.formed(1), (1, 1, 3));
}

#[test]
fn a_run_that_a_torchrun_agent_closes_is_over() {
    let mut world = torchrun_first();
    world.torchrun(&node(0), Action::MarkClosed);
    assert_eq!(world.take(1), [Event::Closed]);
}

#[test]
fn a_native_agent_that_a_torchrun_one_dropped_is_notified_and_may_come_back() {
    let mut world = torchrun_first();
    let (mut state, token) = world.read();
    state.participants.remove(&node(1));
    state.last_heartbeats.remove(&node(1));
    assert!(world.compare_set(&token, &state));
    assert!(world.membership(1).contains("treat this node as lost"));
    world.join(1);
    world.torchrun(&node(0), Action::RemoveFromParticipants);
    world.torchrun(&node(0), Action::AddToParticipants);
    assert_eq!(world.formed(1), (1, 1, 2));
}

#[test]
fn a_state_that_is_none_does_not_stay() {
    let mut world = torchrun_first();
    let key = STATE.as_bytes().to_vec();
    world.keys.insert(key.clone(), b"rubbish".to_vec());
    world.handle(rdzv_rendezvous_proto::coordinator::Input::Stored {
        key: &key,
        value: Some(b"rubbish"),
    });
    assert!(world.read().0.complete);
}

#[test]
fn a_torchrun_job_that_already_runs_takes_a_native_newcomer_in() {
    let mut world = World::new(1, 3);
    world.torchrun(&node(0), Action::AddToParticipants);
    world.torchrun(&node(0), Action::MarkComplete);
    world.join(1);
    let (state, _) = world.read();
    assert!(state.wait_list.contains(&node(1)));
    world.torchrun(&node(0), Action::RemoveFromParticipants);
    world.torchrun(&node(0), Action::AddToParticipants);
    // Both expected agents have joined, so the round waits for no other.
    assert_eq!(world.formed(1), (1, 1, 2));
}

#[test]
fn a_torchrun_surplus_agent_does_not_keep_a_full_round_from_resting() {
    let mut world = torchrun_first();
    world.join(1);
    world.torchrun(&node(2), Action::AddToWaitList);
    world.torchrun(&node(0), Action::RemoveFromParticipants);
    world.torchrun(&node(0), Action::AddToParticipants);
    // Agent 2 is late and finds a full round. In the wait list, it would make all agents restart.
    assert_eq!(world.formed(1), (1, 1, 2));
    let (state, _) = world.read();
    assert!(state.wait_list.is_empty() && state.redundancy_list.contains(&node(2)));
}

#[test]
fn a_native_surplus_agent_steps_in_for_a_torchrun_one() {
    let mut world = World::new(1, 2);
    world.torchrun(&node(0), Action::AddToParticipants);
    world.torchrun(&node(1), Action::AddToParticipants);
    world.join(2);
    let (state, _) = world.read();
    assert!(state.complete && state.redundancy_list.contains(&node(2)));
    // Agent 0 would not join again because a node is lost, only because a node waits.
    world.torchrun(&node(1), Action::RemoveFromParticipants);
    let (state, _) = world.read();
    assert!(state.wait_list.contains(&node(2)));
    world.torchrun(&node(0), Action::RemoveFromParticipants);
    world.torchrun(&node(0), Action::AddToParticipants);
    // The round keeps room for agent 1 for a moment, because that agent may join again.
    assert_eq!(world.take(2), []);
    world.pass(Duration::from_secs(3));
    assert_eq!(world.formed(2), (1, 1, 2));
}
