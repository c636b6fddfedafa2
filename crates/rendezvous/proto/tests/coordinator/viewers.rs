//! Messages of agents for those that have a viewer.

use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::{Event, Operation, Report};

use crate::world::World;

/// Creates a run of three agents in one round.
fn formed() -> World {
    let mut world = World::new(3, 3);
    (1..=3).for_each(|number| world.join(number));
    (1..=3).for_each(|number| drop(world.take(number)));
    world
}

fn report(world: &mut World, agent: u32, has_viewer: bool, is_for_all: bool, message: &str) {
    let report = Report {
        has_viewer,
        is_for_all,
        message: message.as_bytes().to_vec(),
    };
    world.operate(agent, &Operation::Report(report));
}

/// Returns the watches and the messages that an agent has received.
fn received(world: &mut World, agent: u32) -> Vec<(u32, String)> {
    let events = world.take(agent).into_iter();
    let reports = events.map(|event| match event {
        Event::Reports {
            arrived: None,
            watch,
            messages,
        } => (watch, String::from_utf8(messages).unwrap()),
        other => panic!("{other:?}"),
    });
    reports.collect()
}

fn watch(number: u32) -> Vec<(u32, String)> {
    vec![(number, String::new())]
}

#[test]
fn messages_reach_agents_that_have_a_viewer_and_no_others() {
    let mut world = formed();
    report(&mut world, 2, false, false, "unseen");
    assert_eq!(received(&mut world, 1), []);
    report(&mut world, 1, true, false, "");
    for agent in 1..=3 {
        assert_eq!(received(&mut world, agent), watch(1));
    }
    report(&mut world, 2, false, false, "two");
    report(&mut world, 3, false, false, "three");
    assert_eq!(received(&mut world, 1), []);
    report(&mut world, 1, true, false, "one");
    let messages = "\u{3}\0\0\0two\u{5}\0\0\0three".to_owned();
    assert_eq!(received(&mut world, 1), [(1, messages)]);
    assert_eq!(received(&mut world, 2), []);
    // A second viewer needs everything, so the number changes.
    report(&mut world, 2, true, false, "");
    for agent in 1..=3 {
        assert_eq!(received(&mut world, agent), watch(2));
    }
    report(&mut world, 1, false, false, "");
    report(&mut world, 2, false, false, "");
    for agent in 1..=3 {
        assert_eq!(received(&mut world, agent), watch(0));
    }
    world.operate(3, &Operation::Heartbeat);
    assert_eq!(world.pulses[&3], 1);
}

#[test]
fn a_question_reaches_all_agents_and_a_long_one_none() {
    let mut world = formed();
    report(&mut world, 1, true, true, "?");
    for agent in 1..=3 {
        let question = "\u{1}\0\0\0?".to_owned();
        assert_eq!(received(&mut world, agent), [(1, question)]);
    }
    report(&mut world, 1, true, true, &"?".repeat(2000));
    for agent in 1..=3 {
        assert_eq!(received(&mut world, agent), []);
    }
}

#[test]
fn many_messages_are_sent_before_the_viewer_reports() {
    let mut world = formed();
    report(&mut world, 1, true, false, "");
    received(&mut world, 1);
    let long = "x".repeat(20 << 10);
    report(&mut world, 2, false, false, &long);
    assert_eq!(received(&mut world, 1), []);
    report(&mut world, 3, false, false, &long);
    let sent = received(&mut world, 1);
    assert_eq!((sent.len(), sent[0].1.len()), (1, 2 * (4 + long.len())));
}

#[test]
fn a_viewer_that_is_lost_is_forgotten_after_five_seconds() {
    let mut world = formed();
    report(&mut world, 1, true, false, "");
    (1..=3).for_each(|agent| drop(world.take(agent)));
    world.now.mono = world.now.mono + Duration::from_secs(4);
    report(&mut world, 2, false, false, "two");
    assert_eq!(received(&mut world, 2), []);
    world.now.mono = world.now.mono + Duration::from_secs(1);
    report(&mut world, 2, false, false, "two");
    assert_eq!(received(&mut world, 2), watch(0));
}
