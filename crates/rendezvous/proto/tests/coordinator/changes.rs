//! Changes of a complete round.

use std::time::Duration;

use rdzv_core::machine::Machine as _;
use rdzv_rendezvous_proto::coordinator::wire::{AgentRefusal, Event, Operation, Program};
use rdzv_rendezvous_proto::coordinator::{KEPT_FOR, MOST_LEFT_RUNS};

use crate::world::{STATE, World, held_round, node};

/// Returns a complete round of `count` agents that have received their events.
fn round(count: u32, min: u32, max: u32) -> World {
    let mut world = World::new(min, max);
    for number in 0..count {
        world.join(number);
    }
    if count < max {
        let numbers: Vec<u32> = (0..count).collect();
        world.pass_beating(29, &numbers);
        world.pass(Duration::from_secs(1));
    }
    for number in 0..count {
        assert_eq!(world.formed(number), (0, number, count));
    }
    world
}

#[test]
fn a_lost_participant_is_announced_once_and_the_next_round_waits_for_nobody() {
    let mut world = round(4, 1, 4);
    world.lose(1);
    world.lose(2);
    for number in [0, 3] {
        let reason = world.membership(number);
        assert_eq!(reason, "node n001_1_0 is lost: its connection closed");
    }
    world.join(3);
    assert_eq!(world.take(3), []);
    world.join(0);
    assert_eq!(world.formed(0), (1, 0, 2));
    assert_eq!(world.formed(3), (1, 1, 2));
}

#[test]
fn a_newcomer_is_announced_and_taken_in() {
    let mut world = round(2, 1, 4);
    world.join(9);
    for number in [0, 1] {
        assert_eq!(world.membership(number), "node n009_1_0 waits to join");
        world.join(number);
    }
    assert_eq!(world.formed(9), (1, 2, 3));
}

#[test]
fn the_ranks_of_the_latest_round_stand_where_the_reference_has_them() {
    let mut world = round(2, 1, 4);
    let held = |world: &World, key: &str| {
        let key = format!("{STATE}.{key}");
        let value = world.keys.get(key.as_bytes()).cloned();
        value.map(|value| String::from_utf8(value).unwrap())
    };
    let ranks = "1/torchelastic/assigned_ranks";
    assert_eq!(
        held(&world, "0/torchelastic/role_info/1").unwrap(),
        r#"{"role":"default","rank":1,"local_world_size":2}"#
    );
    assert_eq!(
        held(&world, "0/torchelastic/assigned_ranks/1").unwrap(),
        "[2,4,2,4]"
    );
    world.join(9);
    world.join(0);
    world.join(1);
    assert_eq!(world.formed(9), (1, 2, 3));
    assert_eq!(held(&world, &format!("{ranks}/2")).unwrap(), "[4,6,4,6]");
    for key in [
        "role_info/0",
        "role_info/1",
        "assigned_ranks/0",
        "assigned_ranks/1",
    ] {
        assert_eq!(
            held(&world, &format!("0/torchelastic/{key}")),
            None,
            "{key}"
        );
    }
}

#[test]
fn silence_is_loss_after_fifteen_seconds_and_a_late_server_is_not() {
    let mut world = round(2, 1, 2);
    world.pass_beating(13, &[0]);
    assert_eq!(world.take(0), []);
    world.pass(Duration::from_secs(2));
    assert_eq!(
        world.membership(0),
        "node n001_1_0 is lost: it sent nothing for 15.0 s"
    );
    assert_eq!(world.closed, [1]);

    // The server itself was stopped, so no agent is lost.
    let mut world = round(2, 1, 2);
    world.now.mono = world.now.mono + Duration::from_secs(100);
    world.pass(Duration::ZERO);
    assert_eq!((world.take(0), world.take(1)), (vec![], vec![]));
}

#[test]
fn surplus_agents_bother_nobody_and_follow_in_order() {
    let mut world = round(2, 2, 2);
    world.join(7);
    world.join(8);
    assert_eq!((world.take(0), world.take(1)), (vec![], vec![]));
    // This is longer than the join timeout: spare agents wait until the job ends.
    world.pass_beating(700, &[0, 1, 7, 8]);
    world.lose(0);
    world.membership(1);
    world.join(1);
    assert_eq!(world.formed(1), (1, 1, 2));
    assert_eq!(world.formed(7), (1, 0, 2));
    assert_eq!(world.take(8), []);
}

#[test]
fn a_restart_keeps_former_participants_before_surplus_ones() {
    let mut world = round(3, 3, 3);
    world.join(5);
    world.join(0);
    world.membership(1);
    // This agent joins while there seems to be room.
    world.join(6);
    world.join(2);
    world.join(1);
    for (rank, number) in [0, 1, 2].into_iter().enumerate() {
        assert_eq!(world.formed(number), (1, rank as u32, 3));
    }
    assert_eq!((world.take(5), world.take(6)), (vec![], vec![]));
}

#[test]
fn too_few_former_participants_call_for_others_and_wait_for_more() {
    let mut world = round(2, 2, 4);
    world.lose(1);
    world.membership(0);
    world.join(0);
    world.join(5);
    assert_eq!(world.take(5), []);
    world.join(6);
    world.pass_beating(29, &[0, 5, 6]);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.formed(6), (1, 2, 3));
}

#[test]
fn a_surplus_node_of_another_program_does_not_end_well() {
    let mut world = World::new(1, 1);
    world.program = Some(Program::new("a.py", b"a", true));
    world.join(0);
    world.join(5);
    world.program = Some(Program::new("b.py", b"b", true));
    world.join(6);
    world.close(0);
    assert_eq!(world.take(5), [Event::Refused(AgentRefusal::NotNeeded)]);
    let received = world.take(6);
    assert!(
        matches!(&received[..], [Event::Refused(AgentRefusal::Unusable(why))]
            if why.contains("'a.py'") && why.contains("'b.py'") && why.contains("--rdzv-id")),
        "{received:?}"
    );
}

/// INV-R4: a closed rendezvous admits no agent.
///
/// This holds even after all agents that knew of the end have disconnected.
#[test]
fn closing_tells_each_what_it_means() {
    let mut world = round(2, 2, 2);
    world.join(5);
    world.close(0);
    assert_eq!(world.take(1), [Event::Closed]);
    assert_eq!(world.take(5), [Event::Refused(AgentRefusal::NotNeeded)]);
    world.join(6);
    assert_eq!(world.take(6), [Event::Refused(AgentRefusal::Closed)]);
    for number in [0, 1, 5, 6] {
        world.lose(number);
    }
    assert!(!world.coordinator.is_active());
    world.join(7);
    assert_eq!(world.take(7), [Event::Refused(AgentRefusal::Closed)]);
    assert!(world.read().0.closed);
}

#[test]
fn a_failure_is_announced_to_all_others() {
    let mut world = round(3, 3, 3);
    let reason = "out of memory".to_owned();
    world.operate(1, &Operation::Failed { reason });
    for number in [0, 2] {
        assert!(matches!(
            &world.take(number)[..],
            [Event::PeerFailed { node, reason }]
                if node == "n001_1_0" && reason == "out of memory"
        ));
    }
    assert_eq!(world.take(1), []);
}

#[test]
fn where_workers_meet_is_stored_and_announced_to_all() {
    let mut world = round(2, 2, 2);
    let master = |round| Operation::Master {
        round,
        addr: "n000".to_owned(),
        port: 4000,
    };
    // The coordinator ignores endpoints from other ranks and for other rounds.
    world.operate(1, &master(0));
    world.operate(0, &master(1));
    assert_eq!(world.take(1), []);
    world.operate(0, &master(0));
    let received = Event::Master {
        round: 0,
        addr: "n000".to_owned(),
        port: 4000,
    };
    for number in [0, 1] {
        assert_eq!(world.take(number), std::slice::from_ref(&received));
    }
    let port = world.keys.get(&b"/torch.rendezvous.run.0/MASTER_PORT"[..]);
    assert_eq!(port.unwrap(), b"4000");
}

#[test]
fn a_run_without_agents_is_forgotten_and_goes_on_where_it_was() {
    let mut world = round(2, 2, 2);
    world.lose(0);
    world.lose(1);
    assert!(!world.coordinator.is_active());
    let removed_at = world.now.mono + KEPT_FOR;
    assert_eq!(world.coordinator.deadline(), Some(removed_at));
    world.join(0);
    world.join(1);
    assert_eq!(world.formed(0), (1, 0, 2));
}

#[test]
fn keys_of_closed_runs_are_bounded_and_removed_after_a_time() {
    let mut world = World::new(1, 2);
    let close = |run: usize| Operation::Close {
        run: format!("unknown-{run}"),
    };
    for run in 0..2 * MOST_LEFT_RUNS {
        world.operate(7, &close(run));
    }
    assert_eq!(world.keys.len(), MOST_LEFT_RUNS);
    // For late agents, the last runs are still over.
    world.operate(7, &close(2 * MOST_LEFT_RUNS - 1));
    assert_eq!(world.keys.len(), MOST_LEFT_RUNS);
    // Agents of torchrun use one of the runs again.
    let used = STATE.replace("run", "unknown-2000");
    let changed = b"not what we stored".to_vec();
    world.keys.insert(used.clone().into_bytes(), changed);
    world.pass(KEPT_FOR + Duration::from_secs(1));
    assert_eq!(world.keys.keys().collect::<Vec<_>>(), [used.as_bytes()]);
    assert_eq!(world.coordinator.deadline(), None);
}

#[test]
fn leaving_is_answered_and_announced() {
    let mut world = round(2, 1, 2);
    world.operate(1, &Operation::Leave);
    assert_eq!(world.take(1), [Event::Left]);
    assert_eq!(world.membership(0), format!("node {} has left", node(1)));
    world.join(0);
    assert_eq!(world.formed(0), (1, 0, 1));
}

/// Returns the rank of an agent in its new round, and the replaced ranks.
fn placed(world: &mut World, number: u32) -> (u32, Vec<u32>) {
    match &world.take(number)[..] {
        [.., Event::Formed { rank, replaced, .. }] => (*rank, replaced.clone()),
        other => panic!("agent {number} received {other:?}"),
    }
}

/// Returns a complete round of agents from 1, with the ranks from 0.
fn round_from_1(mut world: World, count: u32) -> World {
    for number in 1..=count {
        world.join(number);
    }
    for number in 1..=count {
        assert_eq!(placed(&mut world, number), (number - 1, vec![]));
    }
    world
}

/// Loses an agent, and lets these agents join again.
fn lose_and_rejoin(world: &mut World, lost: u32, others: &[u32]) {
    world.lose(lost);
    for number in others {
        world.membership(*number);
        world.join(*number);
    }
}

/// S-2: nodes keep their ranks in a round of the same size.
#[test]
fn a_spare_gets_the_vacated_rank_and_the_others_keep_theirs() {
    let mut world = round_from_1(World::new(4, 4), 4);
    world.join(0);
    world.pass_beating(16, &[0, 1, 2, 3, 4]);
    lose_and_rejoin(&mut world, 3, &[4, 1, 2]);
    assert_eq!(world.last_spares, [1]);
    for (number, rank) in [(1, 0), (2, 1), (0, 2), (4, 3)] {
        assert_eq!(placed(&mut world, number), (rank, vec![4, 5]), "{number}");
    }
    // A new node waits, and gets the next vacated rank.
    world.join(12);
    lose_and_rejoin(&mut world, 1, &[2, 4, 0]);
    for (number, rank) in [(12, 0), (2, 1), (0, 2), (4, 3)] {
        assert_eq!(placed(&mut world, number), (rank, vec![0, 1]), "{number}");
    }
}

#[test]
fn only_a_job_that_had_a_spare_is_warned_that_no_spare_is_left() {
    // A new node replaces a lost one, and no node was a spare.
    let mut world = round_from_1(World::new(2, 2), 2);
    lose_and_rejoin(&mut world, 1, &[2]);
    world.join(3);
    assert_eq!(placed(&mut world, 3), (0, vec![0, 1]));
    assert!(world.last_spares.is_empty());
    // A spare replaces the next one, and a new node the last one.
    world.take(2);
    world.join(4);
    world.pass_beating(16, &[2, 3, 4]);
    lose_and_rejoin(&mut world, 2, &[3]);
    assert_eq!(world.last_spares, [2]);
    world.take(3);
    world.take(4);
    lose_and_rejoin(&mut world, 3, &[4]);
    world.join(5);
    assert_eq!(placed(&mut world, 5).1.len(), 2);
    assert_eq!(world.last_spares, [2]);
}

#[test]
fn a_node_that_joins_before_the_loss_is_known_is_no_spare() {
    // Time for which node 3 waits beside node 1, and time of its join after the end of node 1.
    for (before, after, last_spares) in [(16, 0, vec![1]), (0, 1, vec![]), (0, 13, vec![])] {
        let mut world = round_from_1(World::new(2, 2), 2);
        if before > 0 {
            world.join(3);
            world.pass_beating(before, &[1, 2, 3]);
        }
        world.pass_beating(after, &[2]);
        if before == 0 {
            world.join(3);
        }
        world.pass_beating(14 - after, &[2, 3]);
        world.pass(Duration::from_secs(1));
        let reason = world.membership(2);
        assert!(reason.starts_with("node n001_1_0 is lost"), "{reason}");
        world.join(2);
        assert_eq!(placed(&mut world, 3), (0, vec![0, 1]));
        assert_eq!(world.last_spares, last_spares, "{before} {after}");
    }
}

#[test]
fn a_spare_counts_if_the_coordinator_dies_together_with_a_node() {
    // The order in which agents attach to the next coordinator, and whether node 4 was a spare.
    for (order, was_spare) in [
        ([4, 2, 3], true),
        ([2, 4, 3], true),
        ([2, 3, 4], true),
        ([2, 3, 4], false),
        ([4, 2, 3], false),
    ] {
        let mut world = round_from_1(World::restartable(3, 3), 3);
        if was_spare {
            world.join(4);
        }
        world.restart();
        for number in order {
            if number == 4 && !was_spare {
                world.join(4);
            } else {
                let held = held_round(0, number - 1, 3);
                world.reattach(number, number, Some(held).filter(|_| number != 4));
            }
        }
        world.pass(Duration::from_secs(4));
        world.attempt = 2;
        world.join(2);
        world.join(3);
        assert_eq!(placed(&mut world, 4), (0, vec![0, 1]));
        let expected: &[u64] = if was_spare { &[1] } else { &[] };
        assert_eq!(world.last_spares, expected, "{order:?}");
    }
}

/// S-2: nodes keep their ranks in whatever order they leave their round.
#[test]
fn nodes_that_join_again_while_a_coordinator_recovers_keep_their_ranks() {
    // `join`: reattach with the round, and join again. `left`: reattach after leaving the round.
    // `back`: reattach with the round, and join again after the recovery. `late`: do both after the
    // recovery.
    for (first, second, third) in [
        ("join", "back", "join"),
        ("join", "join", "join"),
        ("join", "left", "join"),
        ("left", "late", "back"),
        ("join", "late", "back"),
    ] {
        let mut world = round_from_1(World::restartable(4, 4), 4);
        world.join(0);
        world.restart();
        let acts = [(2, first), (3, second), (4, third)];
        let held = |number| Some(held_round(0, number - 1, 4));
        for (number, act) in acts {
            match act {
                "left" => world.reattach_after(number, held(number)),
                "late" => continue,
                _ => world.reattach(number, number, held(number)),
            }
        }
        world.reattach(0, 0, None);
        world.attempt = 2;
        for (number, _) in acts.iter().filter(|(_, act)| *act == "join") {
            world.join(*number);
        }
        world.pass(Duration::from_secs(4));
        for (number, act) in acts {
            if act == "late" {
                world.reattach(number, number, held(number));
            }
            if act == "late" || act == "back" {
                world.join(number);
            }
        }
        for (number, rank) in [(0, 0), (2, 1), (3, 2), (4, 3)] {
            let case = format!("{number}: {first} {second} {third}");
            assert_eq!(placed(&mut world, number), (rank, vec![0, 1]), "{case}");
        }
    }
}

#[test]
fn a_smaller_round_has_its_nodes_in_the_order_of_their_old_ranks() {
    let mut world = round_from_1(World::new(1, 3), 3);
    world.join(0);
    lose_and_rejoin(&mut world, 3, &[1, 2]);
    assert_eq!(placed(&mut world, 0), (2, vec![4, 5]));
    world.take(1);
    world.take(2);
    lose_and_rejoin(&mut world, 1, &[2, 0]);
    assert_eq!(placed(&mut world, 2), (0, vec![]));
    assert_eq!(placed(&mut world, 0), (1, vec![]));
}

#[test]
fn an_agent_that_sorts_has_the_ranks_sorted() {
    let mut world = World::new(3, 3);
    for number in [1, 2, 3] {
        world.join(number);
        world.settings.sorts_ranks = true;
    }
    for number in [1, 2, 3] {
        world.take(number);
    }
    world.join(0);
    lose_and_rejoin(&mut world, 1, &[2, 3]);
    for (number, rank) in [(0, 0), (2, 1), (3, 2)] {
        assert_eq!(placed(&mut world, number), (rank, vec![0, 1]), "{number}");
    }
}

/// A restarted agent is the same node, even if it already counts as lost.
#[test]
fn a_restarted_agent_keeps_its_rank_and_no_rank_is_replaced() {
    let mut world = round_from_1(World::restartable(3, 3), 3);
    world.lose(1);
    world.pass(Duration::from_secs(10));
    assert!(!world.take(2).is_empty() && !world.take(3).is_empty());
    world.attempt = 2;
    world.join(2);
    world.join(3);
    (world.replaces, world.attempt) = (vec![1], 1);
    world.join_as(9, node(9), 9);
    for (number, rank) in [(9, 0), (2, 1), (3, 2)] {
        assert_eq!(placed(&mut world, number), (rank, vec![]), "{number}");
    }
}

/// The coordinator does not know the number of workers of the killed agent.
#[test]
fn an_agent_that_is_restarted_with_its_coordinator_moves_no_rank() {
    let mut world = round_from_1(World::restartable(3, 3), 3);
    world.restart();
    world.reattach(4, 4, None);
    world.reattach(3, 3, Some(held_round(0, 2, 3)));
    world.replaces = vec![1];
    world.join_as(9, node(9), 9);
    world.pass(Duration::from_secs(4));
    (world.replaces, world.attempt) = (vec![], 2);
    world.join(3);
    for (number, rank) in [(9, 0), (4, 1), (3, 2)] {
        assert_eq!(placed(&mut world, number), (rank, vec![2, 3]), "{number}");
    }
}

/// S-3: a spare never displaces a node of the last round that joins in time.
#[test]
fn a_restarted_agent_comes_before_a_spare() {
    let mut world = round_from_1(World::restartable(3, 3), 3);
    world.join(4);
    world.lose(1);
    world.pass(Duration::from_secs(10));
    world.take(4);
    world.attempt = 2;
    world.join(2);
    (world.replaces, world.attempt) = (vec![1], 1);
    world.join_as(9, node(9), 9);
    (world.replaces, world.attempt) = (vec![], 2);
    world.join(3);
    for (number, rank) in [(9, 0), (2, 1), (3, 2)] {
        assert_eq!(placed(&mut world, number), (rank, vec![]), "{number}");
    }
    assert_eq!(world.take(4), []);
}
