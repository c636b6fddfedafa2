//! Broken connections, and coordinators that were killed and restarted.

use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_rendezvous_proto::coordinator::wire::{
    AgentRefusal, Authority, Event, HeldRound, Operation,
};
use rdzv_rendezvous_proto::coordinator::{Input, Origin, REATTACH_WITHIN, RECOVERY_WINDOW};

use crate::world::{World, held_round, node, origin};

/// Longer than a coordinator without a record waits for an older round.
const UNNOTED: Duration = Duration::from_secs(2);

/// Returns a round as the agent with this rank (instance `rank + 1`) knows it.
fn held(round: u64, rank: u32) -> Option<HeldRound> {
    Some(held_round(round, rank, 3))
}

fn succeeded(round: u64, rank: u32) -> Option<HeldRound> {
    held(round, rank).map(|held| HeldRound {
        succeeded: true,
        ..held
    })
}

/// Creates round 0 of agents 1 to `count`, which have received all events.
fn round_of(count: u32, min: u32) -> World {
    let mut world = World::restartable(min, count);
    for number in 1..=count {
        world.join(number);
    }
    publish(&mut world, 0);
    for number in 1..=count {
        world.take(number);
    }
    world
}

/// Creates round 0 like [`round_of`], and restarts its coordinator.
fn restarted(count: u32, min: u32) -> World {
    let mut world = round_of(count, min);
    world.restart();
    world
}

fn publish(world: &mut World, round: u64) {
    let (addr, port) = ("n001".to_owned(), 4000);
    world.operate(1, &Operation::Master { round, addr, port });
}

/// Lets agents reattach with round 0.
fn back(world: &mut World, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        world.reattach(number, number, held(0, number - 1));
    }
}

/// Lets agents join the next round.
fn join_again(world: &mut World, numbers: impl IntoIterator<Item = u32>) {
    world.attempt = 2;
    for number in numbers {
        world.join(number);
    }
}

fn is_attached(event: Option<&Event>) -> bool {
    matches!(event, Some(Event::Attached(_)))
}

/// Returns the events that an agent has received after `Attached`.
fn after_attached(world: &mut World, number: u32) -> Vec<Event> {
    let mut received = world.take(number);
    assert!(is_attached(received.first()), "{received:?}");
    received.remove(0);
    received
}

/// Returns the events after `Attached`, without the workers' store endpoint.
fn events_after_attached(world: &mut World, number: u32) -> Vec<Event> {
    let mut received = after_attached(world, number);
    received.retain(|event| !matches!(event, Event::Master { .. }));
    received
}

/// Returns the reason for which the round of a reattached agent is over.
fn membership_after_attached(world: &mut World, number: u32) -> String {
    let received = events_after_attached(world, number);
    match &received[..] {
        [Event::Membership { reason, .. }] => reason.clone(),
        _ => panic!("agent {number} received {received:?}"),
    }
}

#[test]
fn an_elected_coordinator_does_not_wait_for_a_round_that_one_had_left() {
    let mut world = round_of(2, 1);
    world.attempt = 2;
    world.join(1);
    world.restart_as(Origin {
        electors_heard: Some(world.now.mono),
        ..origin()
    });
    world.settings.last_call_timeout = Duration::ZERO;
    world.join(3);
    world.pass(RECOVERY_WINDOW + Duration::from_secs(1));
    let (round, rank, size) = world.formed(3);
    assert_eq!((round, rank, size), (1, 0, 1));
}

#[test]
fn a_last_call_that_ends_before_the_wait_for_an_older_round_forms_a_round() {
    let mut world = World::restartable(2, 3);
    world.settings.last_call_timeout = Duration::from_secs(1);
    world.start_unnoted(origin());
    for number in [1, 2] {
        world.reattach(number, number, None);
    }
    world.pass(UNNOTED);
    let (_, _, size) = world.formed(1);
    assert_eq!(size, 2);
}

#[test]
fn an_agent_learns_that_its_coordinator_will_be_started_again() {
    let mut world = World::restartable(1, 2);
    world.join(1);
    world.join(2);
    let received = world.take(1);
    let authority = Authority {
        cluster: 7,
        timeout: Duration::from_secs(60),
        ..Authority::default()
    };
    assert!(
        matches!(
            received[..],
            [
                Event::Attached(said),
                Event::Recoverable {
                    round: 0,
                    host: None
                },
                Event::Formed { .. }
            ] if said == authority
        ),
        "{received:?}"
    );
    let note = world.note.unwrap();
    assert_eq!(note.runs["run"].members, [1, 2]);
}

#[test]
fn a_round_with_an_agent_that_knows_no_program_is_not_recoverable() {
    let mut world = World::restartable(2, 2);
    world.join(1);
    world.program = None;
    world.join(2);
    let received = after_attached(&mut world, 1);
    assert!(
        matches!(received[..], [Event::Formed { .. }]),
        "{received:?}"
    );
    // The other agent gets no authority either.
    let received = world.take(2);
    assert!(
        matches!(received[..], [Event::Formed { .. }]),
        "{received:?}"
    );
    // Agent 1 is lost as soon as its connection breaks.
    world.lose(1);
    let reason = world.membership(2);
    assert!(
        reason.contains("is lost: its connection closed"),
        "{reason}"
    );
    assert!(world.note.unwrap().runs["run"].members.is_empty());
}

#[test]
fn a_coordinator_without_a_successor_admits_nobody_again() {
    let mut world = World::new(2, 2);
    world.join(1);
    world.join(2);
    let received = world.take(1);
    assert!(
        matches!(received[..], [Event::Formed { .. }]),
        "{received:?}"
    );
    world.formed(2);
    world.lose(1);
    world.membership(2);
}

#[test]
fn an_agent_that_comes_back_in_time_is_not_lost() {
    let mut world = round_of(2, 2);
    world.lose(1);
    world.pass(REATTACH_WITHIN / 2);
    world.reattach(11, 1, held(0, 0));
    // Rank 0 sends the endpoint, and may not have received the confirmation.
    let received = after_attached(&mut world, 11);
    assert!(
        matches!(received[..], [Event::Master { .. }]),
        "{received:?}"
    );
    world.pass(REATTACH_WITHIN * 2);
    assert_eq!(world.take(2), []);
    // The new connection works like the old one.
    world.lose(11);
    world.pass(REATTACH_WITHIN);
    assert!(world.membership(2).contains("did not reattach"));
}

#[test]
fn an_agent_that_its_launcher_takes_out_is_lost_at_once() {
    let mut world = round_of(3, 2);
    world.lose(3);
    let (mut state, token) = world.read();
    state.participants.remove(&node(3));
    assert!(world.compare_set(&token, &state));
    let reason = world.membership(1);
    assert!(reason.contains("n003_1_0 is lost"), "{reason}");
    world.pass(REATTACH_WITHIN * 2);
    assert_eq!(world.take(1), []);
}

#[test]
fn an_agent_that_comes_back_too_late_learns_that_its_round_is_over() {
    let mut world = round_of(3, 2);
    world.lose(3);
    world.pass(REATTACH_WITHIN);
    world.membership(1);
    world.membership(2);
    world.reattach(13, 3, held(0, 2));
    let received = after_attached(&mut world, 13);
    assert!(
        matches!(received[..], [Event::Membership { round: 0, .. }]),
        "{received:?}"
    );
    world.attempt = 2;
    world.join_as(13, node(3), 3);
    world.join(1);
    world.join(2);
    assert_eq!(world.formed(1), (1, 0, 3));
}

#[test]
fn a_connection_that_is_replaced_before_its_end_was_noticed_loses_nobody() {
    let mut world = round_of(2, 2);
    world.reattach(11, 1, held(0, 0));
    assert_eq!(world.closed, [1]);
    world.lose(1);
    world.pass(REATTACH_WITHIN * 2);
    assert_eq!(world.take(2), []);
}

#[test]
fn a_join_is_taken_in_once_however_often_it_is_repeated() {
    let mut world = World::restartable(2, 2);
    world.join(1);
    world.lose(1);
    world.reattach(11, 1, None);
    assert_eq!(after_attached(&mut world, 11), []);
    world.join(2);
    assert_eq!(world.formed(11), (0, 0, 2));
    // Agent 1 has not received that, and asks again in both ways.
    world.lose(11);
    world.reattach(12, 1, None);
    assert_eq!(world.formed(12), (0, 0, 2));
    world.join_as(12, node(1), 1);
    assert_eq!(world.formed(12), (0, 0, 2));
    world.take(2);
    world.pass(REATTACH_WITHIN * 2);
    assert_eq!(world.take(2), []);
    // The next join of agent 1 has another number.
    world.attempt = 2;
    world.join_as(12, node(1), 1);
    assert!(world.membership(2).contains("joins again"));
}

#[test]
fn a_failure_that_is_repeated_is_announced_once() {
    let mut world = round_of(2, 2);
    let failed = Operation::Failed {
        reason: "disk full".to_owned(),
    };
    world.operate(1, &failed);
    world.reattach(11, 1, held(0, 0));
    world.operate(11, &failed);
    assert!(matches!(world.take(2)[..], [Event::PeerFailed { .. }]));
}

#[test]
fn a_round_holds_on_when_all_its_members_are_back() {
    let mut world = restarted(3, 2);
    for number in [3, 1, 2] {
        world.reattach(number, number, held(0, number - 1));
        assert_eq!(world.note.as_ref().unwrap().authority.epoch, 1);
    }
    for number in 1..=3 {
        assert_eq!(events_after_attached(&mut world, number), [], "{number}");
    }
    assert_eq!(world.recoveries.len(), 1);
    assert!(world.recoveries[0].missing.is_empty());
    world.pass(RECOVERY_WINDOW * 2);
    assert_eq!(world.take(1), []);
    // The recovered round works like any other.
    world.attempt = 2;
    world.join(2);
    assert!(world.membership(1).contains("joins again"));
    assert_eq!(world.read().0.round, 0);
    world.join(1);
    world.join(3);
    assert_eq!(world.formed(1), (1, 0, 3));
}

#[test]
fn a_member_without_the_address_of_the_workers_store_gets_it() {
    let mut world = restarted(2, 2);
    let unaware = held(0, 1).map(|held| HeldRound {
        master: None,
        ..held
    });
    world.reattach(2, 2, unaware);
    world.reattach(1, 1, held(0, 0));
    let received = after_attached(&mut world, 2);
    assert!(
        matches!(&received[..], [Event::Master { addr, port: 4000, .. }] if addr == "n001"),
        "{received:?}"
    );
}

#[test]
fn a_round_that_was_noted_and_not_announced_is_given_up() {
    let mut world = round_of(2, 2);
    join_again(&mut world, [1, 2]);
    // Round 1 is recorded, and the coordinator dies before any agent receives it.
    world.restart();
    world.reattach(1, 1, None);
    assert_eq!(after_attached(&mut world, 1), []);
    world.reattach(2, 2, None);
    assert_eq!(world.formed(2), (2, 1, 2));
}

#[test]
fn a_round_is_over_if_a_member_does_not_hold_it_any_more() {
    let mut world = restarted(3, 2);
    world.reattach(1, 1, held(0, 0));
    world.attempt = 2;
    world.reattach(2, 2, None);
    assert_eq!(after_attached(&mut world, 1), []);
    world.attempt = 1;
    world.reattach(3, 3, held(0, 2));
    assert!(world.membership(1).contains("joins again"));
    join_again(&mut world, [1, 3]);
    assert_eq!(world.formed(2), (1, 1, 3));
}

#[test]
fn a_member_that_had_left_before_is_not_waited_for() {
    let mut world = round_of(3, 2);
    world.operate(3, &Operation::Leave);
    world.restart();
    back(&mut world, [1, 2]);
    let received = after_attached(&mut world, 1);
    assert!(
        matches!(received[..], [Event::Membership { round: 0, .. }]),
        "{received:?}"
    );
    join_again(&mut world, [1, 2]);
    assert_eq!(world.formed(1), (1, 0, 2));
}

#[test]
fn nobody_waits_for_a_member_whose_word_that_it_leaves_was_lost_with_the_coordinator() {
    let mut world = restarted(2, 1);
    world.reattach(1, 1, held(0, 0));
    world.leave_again(2, 2);
    assert_eq!(world.take(2), [Event::Left]);
    assert_eq!(
        membership_after_attached(&mut world, 1),
        "node n002_1_0 has left"
    );
    world.attempt = 2;
    world.join(1);
    assert_eq!(world.formed(1), (1, 0, 1));
}

#[test]
fn a_word_that_an_agent_leaves_is_heard_over_another_connection_once() {
    let mut world = round_of(2, 1);
    world.leave_again(12, 2);
    assert_eq!(world.take(12), [Event::Left]);
    assert_eq!(world.membership(1), "node n002_1_0 has left");
    // The coordinator has received it, and only the answer was lost. The repetition has no effect.
    world.leave_again(22, 2);
    assert_eq!(world.take(22), [Event::Left]);
    assert_eq!(world.take(1), []);
    world.attempt = 2;
    world.join(1);
    world.pass(UNNOTED);
    assert_eq!(world.formed(1), (1, 0, 1));
}

#[test]
fn a_number_is_not_used_again_after_everybody_had_left() {
    let mut world = round_of(2, 2);
    world.operate(1, &Operation::Leave);
    world.operate(2, &Operation::Leave);
    // This agent joins and leaves without a round before the coordinator is killed.
    world.attempt = 2;
    world.join(3);
    world.operate(3, &Operation::Leave);
    world.restart();
    world.join(1);
    world.join(2);
    assert_eq!(world.formed(1), (1, 0, 2));
}

#[test]
fn a_number_that_a_silent_member_of_another_cluster_knows_is_not_used_again() {
    // A coordinator without a report of an earlier round has formed a round.
    let mut world = round_of(1, 1);
    assert_eq!(round_that_is_over_for(&mut world, 7), 5);
    world.attempt = 2;
    world.join(1);
    assert_eq!(world.formed(1).0, 6);
}

#[test]
fn a_number_that_a_member_knows_which_has_left_the_round_is_not_used_again() {
    let mut world = round_of(1, 1);
    world.reattach_after(7, held(5, 1));
    world.attempt = 2;
    world.join(1);
    assert_eq!(world.formed(1).0, 6);
}

/// Returns the round that is over, as an unknown agent receives it.
fn round_that_is_over_for(world: &mut World, number: u32) -> u64 {
    world.reattach(number, number, held(5, 1));
    match after_attached(world, number)[..] {
        [Event::Membership { round, .. }] => round,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn with_more_than_half_back_the_others_are_lost_after_the_window() {
    let mut world = restarted(3, 2);
    back(&mut world, [1, 2]);
    world.pass(RECOVERY_WINDOW);
    assert_eq!(after_attached(&mut world, 1), []);
    world.pass(Duration::from_millis(1));
    let reason = world.membership(1);
    assert!(reason.contains("1 of 3 nodes did not reattach"), "{reason}");
    // The missing agent reattaches later.
    world.reattach(3, 3, held(0, 2));
    membership_after_attached(&mut world, 3);
}

#[test]
fn a_member_that_comes_back_after_another_one_was_lost_learns_that_the_round_is_over() {
    let mut world = restarted(4, 1);
    back(&mut world, [1, 2]);
    assert_eq!(after_attached(&mut world, 2), []);
    // The round is over before its recovery has ended.
    world.lose(1);
    world.pass(REATTACH_WITHIN + Duration::from_millis(1));
    assert!(world.membership(2).contains("n001"));
    world.reattach(3, 3, held(0, 2));
    membership_after_attached(&mut world, 3);
    // All connected agents form the next round.
    join_again(&mut world, [2, 3]);
    world.pass(RECOVERY_WINDOW + Duration::from_secs(1));
    assert_eq!(world.formed(2), (1, 0, 2));
}

#[test]
fn half_of_a_round_waits_and_says_for_whom() {
    let mut world = restarted(4, 1);
    back(&mut world, [2, 4]);
    world.pass_beating(30, &[]);
    assert_eq!(after_attached(&mut world, 2), []);
    // There is a message within 3 s, then every 10 s, and no further one when the window ends.
    let elapsed = world.recoveries.iter().map(|it| it.elapsed.as_secs_f64());
    assert_eq!(elapsed.take(2).collect::<Vec<_>>(), [2.5, 12.5]);
    assert_eq!(world.recoveries[0].missing, [0, 2]);
}

#[test]
fn a_third_one_ends_the_wait_of_half_a_round() {
    let mut world = restarted(4, 1);
    back(&mut world, [2, 4]);
    world.pass(RECOVERY_WINDOW * 2);
    assert_eq!(after_attached(&mut world, 2), []);
    world.reattach(1, 1, held(0, 0));
    assert!(world.membership(2).contains("1 of 4"));
}

#[test]
fn newcomers_wait_for_the_recovery_of_the_round() {
    let mut world = restarted(2, 2);
    world.reattach(1, 1, held(0, 0));
    world.join(3);
    assert_eq!(after_attached(&mut world, 3), []);
    world.reattach(2, 2, held(0, 1));
    // The round is full, so the new agent is a spare, and no agent receives an event.
    assert_eq!(world.read().0.redundancy_list.len(), 1);
    assert_eq!(events_after_attached(&mut world, 1), []);
    world.lose(2);
    world.pass(REATTACH_WITHIN);
    world.membership(1);
    world.attempt = 2;
    world.join(1);
    assert_eq!(world.formed(3).0, 1);
}

#[test]
fn somebody_who_was_not_in_the_round_cannot_hold_it() {
    let mut world = restarted(2, 2);
    // The first reports the rank of agent 2, the second a round that never existed.
    for (number, holds) in [(5, held(0, 1)), (6, held(9, 0))] {
        world.reattach(number, number, holds);
        membership_after_attached(&mut world, number);
    }
    back(&mut world, [1, 2]);
    assert_eq!(events_after_attached(&mut world, 2), []);
}

#[test]
fn a_run_that_was_closed_stays_closed() {
    let mut world = round_of(2, 2);
    world.close(1);
    world.restart();
    world.reattach(2, 2, held(0, 1));
    assert_eq!(world.take(2), [Event::Closed]);
    world.attempt = 2;
    world.reattach(12, 2, None);
    assert_eq!(world.take(12), [Event::Refused(AgentRefusal::Closed)]);
    world.join(3);
    assert_eq!(world.take(3), [Event::Refused(AgentRefusal::Closed)]);
}

#[test]
fn a_closed_run_that_everybody_has_left_stays_closed() {
    let mut world = round_of(2, 2);
    world.close(1);
    world.operate(1, &Operation::Leave);
    world.operate(2, &Operation::Leave);
    for _ in 0..2 {
        world.restart();
        world.join(3);
        assert_eq!(world.take(3), [Event::Refused(AgentRefusal::Closed)]);
    }
}

#[test]
fn success_is_announced_when_all_have_it() {
    let mut world = round_of(2, 2);
    world.operate(1, &Operation::Succeeded { round: 0 });
    assert_eq!(world.take(1), []);
    world.operate(2, &Operation::Succeeded { round: 0 });
    for number in [1, 2] {
        assert_eq!(world.take(number), [Event::AllSucceeded { round: 0 }]);
    }
}

#[test]
fn success_outlives_the_coordinator() {
    let mut world = round_of(2, 2);
    world.operate(1, &Operation::Succeeded { round: 0 });
    world.restart();
    world.reattach(1, 1, succeeded(0, 0));
    world.reattach(2, 2, held(0, 1));
    after_attached(&mut world, 1);
    world.operate(2, &Operation::Succeeded { round: 0 });
    let received = world.take(1);
    assert_eq!(received.last(), Some(&Event::AllSucceeded { round: 0 }));
    // Agent 1 ends the run, which agent 2 does not know.
    world.close(1);
    world.restart();
    world.reattach(2, 2, succeeded(0, 1));
    assert_eq!(world.take(2), [Event::AllSucceeded { round: 0 }]);
}

#[test]
fn success_is_not_taken_back_when_others_have_gone() {
    let mut world = round_of(2, 2);
    world.operate(1, &Operation::Succeeded { round: 0 });
    world.lose(1);
    world.operate(2, &Operation::Succeeded { round: 0 });
    assert_eq!(world.take(2), [Event::AllSucceeded { round: 0 }]);
    // Agent 1 has not received that. It reattaches over another connection or to another
    // coordinator.
    for is_killed in [false, true] {
        if is_killed {
            world.restart();
        } else {
            world.operate(2, &Operation::Leave);
        }
        world.reattach(1, 1, succeeded(0, 0));
        let received = after_attached(&mut world, 1);
        assert_eq!(received.first(), Some(&Event::AllSucceeded { round: 0 }));
    }
}

#[test]
fn a_recovery_that_all_have_deserted_begins_anew() {
    let mut world = restarted(2, 2);
    world.reattach(1, 1, held(0, 0));
    world.lose(1);
    world.pass(REATTACH_WITHIN);
    world.reattach(2, 2, held(0, 1));
    // The coordinator has lost agent 1 during the recovery.
    let received = after_attached(&mut world, 2);
    assert!(
        matches!(received.last(), Some(Event::Membership { .. })),
        "{received:?}"
    );
}

#[test]
fn agents_come_together_after_a_recovery_that_all_have_deserted() {
    let mut world = restarted(3, 2);
    back(&mut world, [1, 2]);
    // An agent of torchrun reads the state during the recovery.
    world.read();
    for number in 1..=2 {
        world.lose(number);
    }
    world.pass(REATTACH_WITHIN * 2);
    back(&mut world, 1..=3);
    for number in 1..=3 {
        world.take(number);
        world.attempt = 2;
        world.join(number);
    }
    world.pass(RECOVERY_WINDOW * 2);
    assert_eq!(world.formed(1), (1, 0, 3));
}

/// Creates round 0 of agents 1 to 3, whose new coordinator has no record.
fn without_note(origin: Origin) -> World {
    let mut world = round_of(3, 2);
    world.start_unnoted(origin);
    world
}

#[test]
fn without_a_note_a_round_holds_on_when_all_its_members_are_back() {
    let mut world = without_note(origin());
    back(&mut world, 1..=3);
    world.pass(UNNOTED);
    for number in 1..=3 {
        assert_eq!(events_after_attached(&mut world, number), [], "{number}");
    }
    let note = world.note.clone().unwrap();
    assert_eq!((note.authority.cluster, note.authority.epoch), (7, 1));
    assert_eq!(note.runs["run"].members, [1, 2, 3]);
    // From here on, the coordinator has a record.
    world.restart();
    for number in 1..=3 {
        world.reattach(number, number, held(0, number - 1));
        after_attached(&mut world, number);
    }
    assert_eq!(world.recoveries.len(), 2);
}

#[test]
fn without_a_note_nobody_may_be_missing() {
    let mut world = without_note(origin());
    back(&mut world, [1, 2]);
    for number in 1..=2 {
        assert_eq!(events_after_attached(&mut world, number), [], "{number}");
    }
    world.join(4);
    world.take(4);
    world.pass_beating(30, &[1, 2, 4]);
    assert_eq!(world.recoveries[0].missing, [2]);
    // The missing agent was in the round, and has left it.
    world.reattach_after(3, held(0, 2));
    world.membership(1);
}

#[test]
fn without_a_note_the_agent_of_the_coordinator_has_ended() {
    let mut world = without_note(origin());
    let hosted = |rank| {
        held(0, rank).map(|held| HeldRound {
            host: Some(0),
            ..held
        })
    };
    world.reattach(2, 2, hosted(1));
    world.reattach(3, 3, hosted(2));
    world.join(4);
    world.pass(UNNOTED);
    assert!(membership_after_attached(&mut world, 2).contains("hosted the rendezvous"));
    join_again(&mut world, [2, 3]);
    assert_eq!(world.formed(4).0, 1 << 16);
}

#[test]
fn a_coordinator_without_a_note_that_knows_of_another_one_gives_out_a_higher_number() {
    let mut world = round_of(2, 2);
    let numbers = [0, 1].map(|obeyed| {
        let word = Origin {
            recover: true,
            ..Origin::default()
        };
        world.start_unnoted(word);
        (world.attempt, world.obeyed) = (1, obeyed);
        world.reattach(1, 1, held(0, 0));
        world.pass(RECOVERY_WINDOW);
        membership_after_attached(&mut world, 1);
        join_again(&mut world, [1, 3]);
        world.formed(1).0
    });
    assert_eq!(numbers, [1 << 16, 2 << 16]);
}

#[test]
fn without_a_note_the_last_round_that_anybody_knows_counts() {
    let mut world = without_note(origin());
    world.reattach(1, 1, held(0, 0));
    for number in 2..=3 {
        world.reattach(number, number, held(5, number - 1));
    }
    assert!(membership_after_attached(&mut world, 1).contains("continued"));
    world.pass(UNNOTED * 4);
    assert_eq!(world.recoveries[0].round, 5);
    assert_eq!(world.recoveries[0].missing, [0]);
}

#[test]
fn a_word_that_the_missing_have_ended_ends_the_wait() {
    let mut world = without_note(Origin {
        recover: true,
        ..Origin::default()
    });
    back(&mut world, [1, 2]);
    world.pass(RECOVERY_WINDOW);
    membership_after_attached(&mut world, 1);
    membership_after_attached(&mut world, 2);
}

#[test]
fn a_successor_ends_the_round_of_an_agent_at_once() {
    let mut world = round_of(2, 2);
    (world.replaces, world.attempt) = (vec![2], 1);
    world.join_as(4, node(4), 4);
    assert!(world.membership(1).contains("was killed"));
    (world.replaces, world.attempt) = (Vec::new(), 2);
    world.join(1);
    assert_eq!(world.formed(4), (1, 1, 2));
    // The connection of the ended agent closes late, which has no effect.
    world.lose(2);
    world.pass(REATTACH_WITHIN * 2);
    assert!(
        world
            .take(4)
            .iter()
            .all(|event| !matches!(event, Event::Membership { .. }))
    );
}

#[test]
fn a_successor_accounts_for_an_agent_while_state_is_recovered() {
    let mut world = restarted(2, 2);
    world.reattach(2, 2, held(0, 1));
    world.replaces = vec![1];
    world.join_as(4, node(4), 4);
    assert!(membership_after_attached(&mut world, 2).contains("was restarted"));
    (world.replaces, world.attempt) = (Vec::new(), 2);
    world.join(2);
    assert_eq!(world.formed(4).0, 1);
}

#[test]
fn an_agent_that_ends_in_order_has_nobody_wait_for_its_coordinator() {
    let mut world = round_of(1, 1);
    world.handle(Input::Ending);
    assert_eq!(world.take(1), [], "a store may be started again");
    world.start_unnoted(Origin {
        agent: Some(1),
        ..Origin::default()
    });
    world.join(1);
    world.take(1);
    world.handle(Input::Ending);
    assert!(
        matches!(world.take(1)[..], [Event::Attached(authority)] if authority.timeout.is_zero())
    );
}

#[test]
fn a_number_that_no_round_can_have_does_no_harm() {
    let mut world = World::restartable(1, 1);
    world.reattach(1, 1, held(u64::MAX, u32::MAX));
    world.take(1);
    world.attempt = 2;
    world.join(1);
    world.pass(UNNOTED);
    assert_eq!(world.formed(1).0, (1 << 48) + 1);
    world.attempt = 3;
    world.join(1);
    assert_eq!(world.formed(1).0, (1 << 48) + 2);
}

#[test]
fn a_participant_that_says_nothing_is_sent_something_for_its_kernel_to_acknowledge() {
    let mut world = round_of(2, 1);
    let pulses = |world: &mut World| {
        let sent = std::mem::take(&mut world.pulses);
        [1, 2].map(|number| sent.get(&number).copied().unwrap_or(0))
    };
    // The time is a third of 3 s, and of 0.2 ms for each agent.
    world.pass(Duration::from_millis(990));
    assert_eq!(pulses(&mut world), [0, 0]);
    world.operate(1, &Operation::Heartbeat);
    assert_eq!(pulses(&mut world), [1, 0], "it is answered");
    world.pass(Duration::from_millis(20));
    assert_eq!(pulses(&mut world), [0, 1]);
    world.pass(Duration::from_millis(985));
    assert_eq!(pulses(&mut world), [1, 0]);
    let silence = world.coordinator.silence(ConnId(1));
    assert_eq!(silence, Some(Duration::from_millis(1500)));
    // No agent is lost because of that.
    world.pass(Duration::from_secs(10));
    assert!(world.closed.is_empty());
}

#[test]
fn where_a_broken_connection_is_a_loss_nothing_is_sent() {
    let mut world = World::new(2, 2);
    world.join(1);
    world.join(2);
    world.pass(Duration::from_secs(14));
    assert!(world.pulses.is_empty());
    assert_eq!(world.coordinator.silence(ConnId(1)), None);
}

#[test]
fn a_machine_is_lost_when_it_was_silent_for_long_and_not_when_its_connection_breaks() {
    let mut world = round_of(2, 1);
    world.pass(Duration::from_millis(500));
    world.operate(2, &Operation::Heartbeat);
    world.pass(Duration::from_millis(1700));
    // The kernel has counted an earlier silence too.
    world.handle(Input::Silent(ConnId(2)));
    world.lose(2);
    world.pass(Duration::from_millis(1290));
    assert!(world.take(1).is_empty());
    world.pass(Duration::from_millis(20));
    assert!(world.membership(1).contains("n002"));
}
