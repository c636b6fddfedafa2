//! The group as its members see it.

use std::time::Duration;

use rdzv_rendezvous_proto::group::{Case, VoterGroupView, VoterRole, VoterState};

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the states of the members by endpoint.
fn states(view: &VoterGroupView) -> Vec<(Option<&str>, VoterState)> {
    let voters = view.voters.iter();
    let states = voters.map(|voter| (voter.address.as_deref(), voter.state));
    states.collect()
}

#[test]
fn every_voter_names_the_same_coordinator_and_the_state_of_each() {
    let mut world = World::founded(3);
    world.pass(10 * SECOND);
    let coordinator = world.coordinator().unwrap();
    let endpoints = [0, 1, 2].map(World::endpoint);
    for index in 0..3 {
        let view = world.view(index);
        assert_eq!(view.coordinator, Some(World::endpoint(coordinator)));
        let theirs = world.view(coordinator);
        assert!(view.cluster.is_some() && view.term >= Some(1));
        assert_eq!((view.cluster, view.term), (theirs.cluster, theirs.term));
        assert_eq!(view.epoch, view.term);
        let role = if index == coordinator {
            VoterRole::Coordinator
        } else {
            VoterRole::Voter
        };
        assert_eq!(view.role, Some(role));
        let expected = endpoints.iter().enumerate().map(|(at, endpoint)| {
            let state = if at == coordinator {
                VoterState::Leader
            } else {
                VoterState::Follower
            };
            (Some(&endpoint[..]), state)
        });
        assert_eq!(states(&view), expected.collect::<Vec<_>>());
        assert_eq!((view.target, view.waiting), (3, None));
        assert_eq!((view.elections, view.takeovers), (1, 0));
        for (at, voter) in view.voters.iter().enumerate() {
            let is_leader = index == coordinator;
            assert_eq!(voter.lag.is_some(), is_leader);
            assert_eq!(voter.last_heard.is_none(), at == index);
            if at != index && (is_leader || at == coordinator) {
                assert!(voter.last_heard.unwrap() < SECOND, "{voter:?}");
            }
        }
    }
}

#[test]
fn a_killed_coordinator_is_silent_before_another_process_replaces_it() {
    let mut world = World::founded(3);
    let dead = world.coordinator().unwrap();
    let term = world.view(dead).term;
    world.kill(dead);
    world.pass(2 * SECOND);
    let next = world.coordinator().unwrap();
    for index in (0..3).filter(|index| *index != dead) {
        let view = world.view(index);
        assert_eq!(view.coordinator, Some(World::endpoint(next)));
        assert_eq!(view.voters[dead].state, VoterState::Silent);
        assert_eq!(view.voters[next].state, VoterState::Leader);
        assert!(view.term > term);
        assert_eq!((view.elections, view.waiting), (2, None));
    }
    world.start(dead);
    world.pass(5 * SECOND);
    for index in 0..3 {
        let view = world.view(index);
        let states = states(&view);
        assert!(
            states.iter().all(|(_, state)| *state != VoterState::Silent),
            "{states:?}"
        );
        assert_eq!(view.voters.len(), 3);
    }
}

#[test]
fn who_waits_for_a_majority_says_who_is_missing() {
    let mut world = World::new(3, 1);
    world.start(1);
    world.pass(SECOND);
    let view = world.view(1);
    assert_eq!((view.cluster, view.role, view.target), (None, None, 1));
    let wait = view.waiting.unwrap();
    assert_eq!(wait.case, Case::W5);
    assert_eq!(wait.missing, [World::endpoint(0), World::endpoint(2)]);
    assert_eq!(
        wait.sentence,
        "no coordinator: 1 of 3 voters are in contact; missing n0:29400, n2:29400"
    );
    world.start(0);
    world.start(2);
    world.pass(2 * SECOND);
    assert_eq!(world.view(1).waiting, None);
    // A process that is cut off is a minority, and notices it within the time limit.
    world.cut_off(&[0]);
    world.pass(5 * SECOND);
    let view = world.view(0);
    assert!(view.cluster.is_some());
    assert_eq!(
        (view.coordinator, view.role),
        (None, Some(VoterRole::Voter))
    );
    let wait = view.waiting.unwrap();
    assert_eq!(wait.missing, [World::endpoint(1), World::endpoint(2)]);
    assert_eq!(world.view(1).waiting, None);
}

#[test]
fn an_agent_beside_an_only_voter_says_itself_that_it_is_gone() {
    // One agent was invited just before, and one learns.
    let mut invited = World::open(2, 3, 1);
    invited.kill(0);
    invited.start(1);
    let mut learner = World::open(2, 3, 1);
    (0..2).for_each(|agent| learner.join(0, agent, 1));
    learner.pass(SECOND);
    let learning = learner.view(1).voters[1].state;
    assert_eq!(learning, VoterState::Learner);
    learner.kill(0);
    for mut world in [invited, learner] {
        world.pass(5 * SECOND);
        let view = world.view(1);
        assert_eq!((view.coordinator, view.waiting), (None, None));
    }
}

#[test]
fn a_coordinator_that_waits_for_agents_names_their_ranks() {
    let mut world = World::founded(3);
    let index = world.coordinator().unwrap();
    world.join(index, 0, 1);
    world.join(index, 1, 1);
    world.pass(SECOND);
    world.kill(index);
    world.pass(SECOND);
    let next = world.coordinator().unwrap();
    assert_eq!(world.view(next).waiting, None, "no agent has asked yet");
    world.join(next, 2, 1);
    let wait = world.view(next).waiting.unwrap();
    assert_eq!(wait.case, Case::W2);
    assert_eq!(wait.missing, ["group rank 0", "group rank 1"]);
    assert!(wait.sentence.contains("recovering round"), "{wait}");
}
