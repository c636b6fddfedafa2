//! Transitions of a round, as scripts: `input -> event | event … = state`.
//!
//! Events are in the order of the agents, without those that only name the coordinator. The state
//! is the variant of `Round`.

use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::{Event, HeldRound, Operation};
use rdzv_rendezvous_proto::coordinator::{Origin, REATTACH_WITHIN, RECOVERY_WINDOW};

use crate::world::{World, held_round, origin};

/// Two agents in round 0, which is full.
const HELD: &str = "
    join 1    -> = Forming
    join 2    -> 1 formed 0 | 2 formed 0 = Held
";

/// Transitions after [`HELD`], each with its name.
const AFTER_HELD: &str = "\
    # forming recovers to recovering with a record
    restart   -> =
    return 1  -> = Recovering

    # forming recovers to silent with a record of silence
    lose 1    -> 2 over 0 = Over
    lose 2    -> =
    restart   -> =
    join 3    -> = Silent

    # held breaks to over if a participant leaves
    leave 1   -> 2 over 0 = Over

    # held breaks to over if a participant joins again
    join 1    -> 2 over 0 = Over

    # over begins the next round when the last participant has left
    leave 1   -> 2 over 0 = Over
    join 2    -> 2 formed 1 = Held

    # over begins the next round when the last participant has left
    join 1    -> 2 over 0 = Over
    join 2    -> 1 formed 1 | 2 formed 1 = Held

    # over waits as silent when the last participant is lost
    join 3    -> = Held
    lose 1    -> 2 over 0 = Over
    lose 2    -> = Silent

    # silent restores to over when a participant returns
    join 3    -> = Held
    lose 1    -> 2 over 0 = Over
    lose 2    -> = Silent
    return 1  -> 1 over 0 = Over
    leave 1   -> 3 formed 1 = Held

    # silent restores to forming when a participant joins without the round
    join 3    -> = Held
    lose 1    -> 2 over 0 = Over
    lose 2    -> = Silent
    join 1    -> 1 formed 1 | 3 formed 1 = Held

    # recovering restores to held when all participants hold the round
    restart   -> =
    return 1  -> = Recovering
    return 2  -> = Held

    # recovering restores to over when a participant does not hold the round
    restart   -> =
    return 1  -> = Recovering
    join 2    -> 1 over 0 = Over

    # recovering restores to forming when no participant holds the round
    restart   -> =
    join 1    -> = Recovering
    join 2    -> 1 formed 1 | 2 formed 1 = Held

    # recovering waits as silent when the participants that returned are lost
    restart   -> =
    join 3    -> = Recovering
    return 1  -> = Recovering
    lose 1    -> = Silent
";

fn run(script: &str) -> World {
    run_with(World::restartable(1, 2), script)
}

fn run_with(mut world: World, script: &str) -> World {
    let mut case = "";
    for line in script.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            case = line;
            continue;
        }
        let (input, expected) = line.split_once("->").expect("a line has an arrow");
        apply(&mut world, input.trim());
        let (expected, state) = expected.rsplit_once('=').expect("a line has a state");
        assert_eq!(events(&mut world), expected.trim(), "{case}, after: {line}");
        assert_eq!(state_of(&world), state.trim(), "{case}, after: {line}");
    }
    world
}

fn apply(world: &mut World, input: &str) {
    let (name, value) = input.split_once(' ').unwrap_or((input, "0"));
    let number: u32 = value.parse().expect("a number follows");
    match name {
        "join" => {
            world.attempt += 1;
            world.join(number);
        }
        "leave" => world.operate(number, &Operation::Leave),
        // The connection breaks, and the agent does not reattach in time.
        "lose" => {
            world.lose(number);
            world.pass(REATTACH_WITHIN);
        }
        "return" => {
            let held = held_round(0, number - 1, world.settings.max_nodes);
            let master = None;
            world.reattach(number, number, Some(HeldRound { master, ..held }));
        }
        "close" => world.close(number),
        // The coordinator is killed. The next one starts with its record, or without a record.
        "restart" => world.restart(),
        "start" => world.start_unnoted(origin()),
        "pass" => world.pass(Duration::from_millis(number.into())),
        other => panic!("an unknown input: {other}"),
    }
}

fn events(world: &mut World) -> String {
    let received = std::mem::take(&mut world.received);
    let shown = received.iter().flat_map(|(agent, events)| {
        let shown = events.iter().filter_map(|event| match event {
            Event::Formed { round, .. } => Some(format!("formed {round}")),
            Event::Membership { round, .. } => Some(format!("over {round}")),
            Event::Closed => Some("closed".to_owned()),
            Event::Refused(_) => Some("refused".to_owned()),
            _ => None,
        });
        shown.map(move |event| format!("{agent} {event}"))
    });
    shown.collect::<Vec<_>>().join(" | ")
}

/// Returns the variant of `Round` of the only run; empty if there is no run.
fn state_of(world: &World) -> String {
    let shown = format!("{:?}", world.coordinator);
    let variants = shown.match_indices(" round: ").filter_map(|(at, field)| {
        let variant = &shown[at + field.len()..];
        let name: String = variant
            .chars()
            .take_while(|letter| letter.is_alphabetic())
            .collect();
        (!name.is_empty()).then_some(name)
    });
    variants.last().unwrap_or_default()
}

#[test]
fn forming_completes_to_held() {
    run(HELD);
}

#[test]
fn each_transition_after_a_held_round_has_its_events_and_state() {
    for case in AFTER_HELD.split("\n\n") {
        run(&format!("{HELD}{case}"));
    }
}

#[test]
fn forming_recovers_to_recovering_without_a_record() {
    run("
        start     -> =
        join 3    -> = Forming
        return 1  -> = Recovering
    ");
}

#[test]
fn held_breaks_to_over_if_a_node_waits_to_join() {
    let mut world = World::restartable(1, 3);
    world.settings.last_call_timeout = Duration::from_secs(1);
    run_with(
        world,
        "
        join 1    -> = Forming
        pass 2000 -> 1 formed 0 = Held
        join 2    -> 1 over 0 = Over
        ",
    );
}

#[test]
fn silent_restores_to_forming_when_the_user_confirms() {
    let mut world = run(&format!(
        "{HELD}
        lose 1    -> 2 over 0 = Over
        lose 2    -> =
        "
    ));
    world.start_unnoted(Origin {
        recover: true,
        ..origin()
    });
    run_with(world, "join 3 -> = Forming");
}

#[test]
fn recovering_restores_to_over_when_most_participants_are_back() {
    let mut world = World::restartable(1, 3);
    let window = u32::try_from(RECOVERY_WINDOW.as_millis()).unwrap() + 100;
    world = run_with(
        world,
        "
        join 1    -> = Forming
        join 2    -> = Forming
        join 3    -> 1 formed 0 | 2 formed 0 | 3 formed 0 = Held
        restart   -> =
        ",
    );
    let script = format!(
        "return 1 -> = Recovering
        return 2 -> = Recovering
        pass {window} -> 1 over 0 | 2 over 0 = Over"
    );
    run_with(world, &script);
}

#[test]
fn every_state_closes() {
    for (script, events) in [
        ("join 1 -> = Forming", "1 refused"),
        (HELD, "1 closed | 2 closed"),
        (
            "join 1 -> = Forming
            join 2 -> 1 formed 0 | 2 formed 0 = Held
            leave 1 -> 2 over 0 = Over",
            "2 closed",
        ),
    ] {
        run(&format!(
            "{script}\n close 9 -> {events} | 9 closed = Closed"
        ));
    }
    for script in ["return 1 -> = Recovering", "join 3 -> = Recovering"] {
        let events = if script.starts_with("join") {
            "3 refused"
        } else {
            "1 closed"
        };
        run(&format!(
            "{HELD}
            restart -> =
            {script}
            close 9 -> {events} | 9 closed = Closed"
        ));
    }
}
