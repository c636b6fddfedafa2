//! Joins and the formation of a round.

use std::time::Duration;

use proptest::prelude::*;
use rdzv_core::ident::ConnId;
use rdzv_core::rank::Assignment;
use rdzv_rendezvous_proto::coordinator::Input;
use rdzv_rendezvous_proto::coordinator::wire::{AgentRefusal, Event, Operation, Program};
use rdzv_rendezvous_proto::last_call::LastCall;

use crate::world::{World, node};

proptest! {
    /// INV-R1, INV-R2: ranks do not depend on the order in which agents join.
    #[test]
    fn joins_commute(order in Just((0..12_u32).collect::<Vec<_>>()).prop_shuffle()) {
        let mut world = World::new(12, 12);
        for number in &order {
            world.join(*number);
        }
        for number in 0..12 {
            let assignment = Assignment::from((2 * number, 24, 2 * number, 24));
            let expected = Event::Formed {
                round: 0,
                rank: number,
                world_size: 12,
                assignment: Some(assignment),
                replaced: Vec::new(),
            };
            prop_assert_eq!(world.take(number), [expected]);
        }
    }
}

#[test]
fn the_last_call_begins_with_enough_and_ends_with_too_few() {
    let mut world = World::new(2, 4);
    world.join(0);
    world.join(1);
    world.pass(Duration::from_secs(10));
    world.lose(1);
    world.pass_beating(30, &[0]);
    world.join(2);
    world.pass_beating(29, &[0, 2]);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.formed(0), (0, 0, 2));
    assert_eq!(world.formed(2), (0, 1, 2));
    let received = LastCall {
        nodes: 2,
        room: 2,
        ends_in: Duration::from_secs(30),
    };
    assert_eq!(world.last_calls, [received], "it is logged once");
}

#[test]
fn nobody_is_notified_of_a_last_call_that_waits_for_nobody() {
    let mut world = World::new(2, 2);
    world.join(0);
    world.join(1);
    assert_eq!(world.formed(1), (0, 1, 2));
    assert_eq!(world.last_calls, []);
}

#[test]
fn a_join_that_is_repeated_changes_nothing() {
    let mut world = World::new(2, 2);
    world.join(0);
    world.join(0);
    world.join(1);
    assert_eq!(world.formed(1), (0, 1, 2));
    assert_eq!(world.take(0).len(), 1);
}

#[test]
fn a_timed_out_join_names_who_had_come_and_makes_room() {
    let mut world = World::new(2, 2);
    world.settings.join_timeout = Duration::from_secs(60);
    world.join(0);
    world.pass_beating(59, &[0]);
    world.pass(Duration::from_secs(1));
    let refusal = AgentRefusal::JoinTimeout {
        elapsed: Duration::from_secs(60),
        joined: vec![node(0).to_string()],
    };
    assert_eq!(world.take(0), [Event::Refused(refusal)]);
    world.join(1);
    world.join(2);
    assert_eq!(world.formed(1), (0, 0, 2));
}

#[test]
fn those_who_have_waited_for_long_hear_who_comes_and_goes() {
    let mut world = World::new(4, 4);
    world.program = Some(Program::new("train.py", b"", true));
    world.settings.keep_alive_interval = Duration::from_secs(1000);
    let told = |events: &[Event]| -> Vec<u32> {
        let nodes = |event: &Event| match event {
            Event::Alive(Some(arrived)) => arrived.nodes,
            other => panic!("{other:?}"),
        };
        events.iter().map(nodes).collect()
    };
    world.join(0);
    world.pass(Duration::from_secs(2));
    world.join(1);
    world.pass(Duration::from_secs(2));
    // The coordinator does not report short waits.
    assert_eq!(
        (told(&world.take(0)), told(&world.take(1))),
        (vec![], vec![])
    );
    world.pass(Duration::from_secs(10));
    world.join(2);
    world.lose(1);
    world.join(1);
    assert!(world.take(0).is_empty(), "changes are reported together");
    world.pass(Duration::from_secs(1));
    assert_eq!(
        (told(&world.take(0)), told(&world.take(2))),
        (vec![3], vec![])
    );
    world.lose(1);
    world.pass(Duration::from_secs(60));
    assert_eq!(
        (told(&world.take(0)), told(&world.take(2))),
        (vec![2], vec![])
    );
    world.join(1);
    world.join(3);
    world.pass(Duration::from_secs(60));
    assert!(matches!(world.take(0)[..], [Event::Formed { .. }]));
}

#[test]
fn another_agent_of_the_same_name_is_refused_and_the_same_one_is_not() {
    let mut world = World::new(2, 2);
    world.join_as(0, node(0), 7);
    world.join_as(1, node(0), 8);
    let received = world.take(1);
    assert!(
        matches!(&received[..], [Event::Refused(AgentRefusal::Unusable(why))] if why.contains("n000_1_0")),
        "{received:?}"
    );
    world.join_as(2, node(0), 7);
    assert_eq!(world.closed, [0]);
    // The end of the replaced connection has no effect.
    world.lose(0);
    world.join(3);
    assert_eq!(world.formed(2), (0, 0, 2));
}

#[test]
fn other_settings_are_named_as_long_as_they_are_in_use() {
    let mut world = World::new(2, 2);
    world.join(0);
    world.settings.max_nodes = 3;
    world.join(1);
    let received = world.take(1);
    assert!(
        matches!(&received[..], [Event::Refused(AgentRefusal::Unusable(why))]
            if why.contains("2:3") && why.contains("2:2") && why.contains("n000_1_0")),
        "{received:?}"
    );
    world.lose(0);
    world.join(1);
    assert_eq!(world.take(1), []);
}

#[test]
fn without_a_run_id_only_agents_that_run_the_same_meet() {
    let program = |name: &str, text: &[u8]| Some(Program::new(name, text, false));
    let mut world = World::new(3, 3);
    world.program = program("a.py", b"a");
    world.join(0);
    for (name, text) in [("b.py", b"b"), ("a.py", b"c")] {
        world.program = program(name, text);
        world.join(1);
        let received = world.take(1);
        assert!(
            matches!(&received[..], [Event::Refused(AgentRefusal::Unusable(why))]
                if why.contains(&format!("'{name}'")) && why.contains("'a.py'")
                    && why.contains("n000_1_0") && why.contains("--rdzv-id")),
            "{received:?}"
        );
    }
    // The same script at another path is equal. An agent may know no program.
    world.program = program("copy-of-a.py", b"a");
    world.join(2);
    world.program = None;
    world.join(3);
    assert_eq!(world.formed(3), (0, 2, 3));
}

#[test]
fn with_a_run_id_agents_may_run_what_they_like() {
    let mut world = World::new(2, 2);
    world.program = Some(Program::new("a.py", b"a", true));
    world.join(0);
    world.program = Some(Program::new("b.py", b"b", true));
    world.join(1);
    assert_eq!(world.formed(1), (0, 1, 2));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for change in [
        |world: &mut World| world.settings.min_nodes = 0,
        |world: &mut World| world.settings.max_nodes = 1,
        |world: &mut World| world.settings.keep_alive_interval = Duration::MAX,
        |world: &mut World| world.settings.keep_alive_max_attempt = 0,
        |world: &mut World| world.settings.join_timeout = Duration::MAX,
    ] {
        let mut world = World::new(2, 2);
        change(&mut world);
        world.join(0);
        assert!(matches!(
            world.take(0)[..],
            [Event::Refused(AgentRefusal::Unusable(_))]
        ));
        assert!(!world.coordinator.is_active());
    }
}

#[test]
fn bytes_that_are_no_operation_end_the_connection() {
    let mut world = World::new(1, 1);
    for (from, opcode, payload) in [(0, 0x20, &b"\x01junk"[..]), (1, 0x7f, b"")] {
        world.handle(Input::Request {
            from: ConnId(from),
            opcode,
            payload,
        });
    }
    assert_eq!(world.closed, [0, 1]);
}

proptest! {
    #[test]
    fn arbitrary_operations_never_panic(
        requests in prop::collection::vec((0..4_u32, 0x1f..0x28_u8, any::<Vec<u8>>()), 0..40)
    ) {
        let mut world = World::new(1, 2);
        world.join(0);
        for (from, opcode, payload) in requests {
            world.handle(Input::Request { from: ConnId(from), opcode, payload: &payload });
        }
        world.operate(9, &Operation::Status { run: "run".to_owned() });
        prop_assert_eq!(world.take(9).len(), 1);
    }
}
