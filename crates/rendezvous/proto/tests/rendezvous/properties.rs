//! Properties for every state that an agent finds, and for every input.

use std::time::Duration;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_rendezvous_proto::apply::{apply, sanitise};
use rdzv_rendezvous_proto::decide::{self, Action, JoinPhase, Moment};
use rdzv_rendezvous_proto::participant::{Input, Output};
use rdzv_rendezvous_proto::{NodeDesc, Participant, RendezvousState, Settings, ranks};

use crate::text::node;

fn a_node() -> impl Strategy<Value = NodeDesc> {
    "[a-f]".prop_map(|name| node(&name))
}

fn a_time() -> impl Strategy<Value = Wall> {
    (0_i64..60_000_000).prop_map(Wall::from_unix_micros)
}

/// Generates any state, valid or not.
fn any_state() -> impl Strategy<Value = RendezvousState> {
    (
        0_u64..3,
        any::<bool>(),
        proptest::option::of(a_time()),
        proptest::bool::weighted(0.1),
        btree_map(a_node(), 0_u32..6, 0..6),
        btree_set(a_node(), 0..4),
        btree_set(a_node(), 0..3),
        btree_map(a_node(), a_time(), 0..6),
    )
        .prop_map(
            |(round, complete, deadline, closed, participants, waiting, surplus, beats)| {
                RendezvousState {
                    round,
                    complete,
                    deadline,
                    closed,
                    participants,
                    wait_list: waiting,
                    redundancy_list: surplus,
                    last_heartbeats: beats,
                    ..RendezvousState::default()
                }
            },
        )
}

/// Generates a state that agents with these settings can reach.
fn a_state(settings: Settings) -> impl Strategy<Value = RendezvousState> {
    any_state().prop_map(move |mut state| {
        while state.participants.len() > settings.max_nodes as usize {
            state.participants.pop_last();
        }
        if state.participants.len() == settings.max_nodes as usize {
            state.complete = true;
        }
        if state.participants.len() < settings.min_nodes as usize {
            state.complete = false;
            state.deadline = None;
        }
        if state.complete {
            state.deadline = None;
            ranks::assign(&mut state.participants);
        }
        for node in state.participants.keys() {
            state.wait_list.remove(node);
            state.redundancy_list.remove(node);
        }
        for node in &state.wait_list {
            state.redundancy_list.remove(node);
        }
        state
    })
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (1_u32..4, 0_u32..4).prop_map(|(min, more)| Settings::new(min, min + more))
}

fn settings_and_state() -> impl Strategy<Value = (Settings, RendezvousState)> {
    any_settings().prop_flat_map(|settings| (Just(settings), a_state(settings)))
}

fn a_moment() -> impl Strategy<Value = Moment> {
    let phase = prop_oneof![
        Just(JoinPhase::InTime),
        Just(JoinPhase::RollBack),
        Just(JoinPhase::Over)
    ];
    let flags = (any::<bool>(), any::<bool>());
    (a_time(), phase, flags).prop_map(|(wall, phase, (all_here, last_call_over))| Moment {
        wall,
        last_call_over,
        phase,
        all_here,
    })
}

fn an_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        3 => Just(Input::Join),
        1 => Just(Input::Leave),
        1 => Just(Input::Close),
        3 => Just(Input::Changed),
        8 => Just(Input::Tick),
        1 => vec(a_node(), 0..3).prop_map(Input::Gone),
        8 => proptest::option::of(any_state()).prop_map(Input::Read),
        6 => (proptest::option::of(any_state()), any::<bool>())
            .prop_map(|(state, won)| Input::Written { state, won }),
    ]
}

proptest! {
    #[test]
    fn ranks_are_a_permutation(names in btree_set("[a-z]{1,3}", 0..40)) {
        let mut participants = names.iter().map(|name| (node(name), 0)).collect();
        ranks::assign(&mut participants);
        let mut given: Vec<u32> = participants.values().copied().collect();
        given.sort_unstable();
        prop_assert_eq!(given, (0..names.len() as u32).collect::<Vec<_>>());
        prop_assert!(ranks::are_assigned(&participants));
    }

    /// INV-R1 to INV-R4 for one step of one agent.
    #[test]
    fn joining_keeps_the_rules(
        (settings, state) in settings_and_state(),
        me in a_node(),
        moment in a_moment(),
    ) {
        let decision = decide::join(&state, &me, &settings, moment);
        let mut made = state.clone();
        apply(&mut made, &me, &settings, decision.action, moment.wall);
        prop_assert_eq!(decision.action.is_change(), made != state || matches!(
            decision.action,
            Action::KeepAlive | Action::AddToWaitList | Action::AddToRedundancyList
        ));
        prop_assert!(made.round == state.round || (made.round == state.round + 1
            && state.complete && made.participants.is_empty()));
        if state.closed {
            prop_assert!(!decision.action.is_change() && decision.action != Action::Finish, "INV-R4");
        }
        if made.complete && !state.complete {
            let count = made.participants.len() as u32;
            prop_assert!((settings.min_nodes..=settings.max_nodes).contains(&count), "INV-R3");
            prop_assert!(ranks::are_assigned(&made.participants), "INV-R2");
        }
        if made.complete && state.complete {
            for (node, rank) in &made.participants {
                prop_assert_eq!(state.participants.get(node), Some(rank), "INV-R1");
            }
        }
        if decision.action == Action::Finish {
            prop_assert!(state.complete && state.participants.contains_key(&me));
        }
        let lists = [
            made.participants.contains_key(&me),
            made.wait_list.contains(&me),
            made.redundancy_list.contains(&me),
        ];
        prop_assert!(lists.iter().filter(|listed| **listed).count() <= 1, "in two lists");
    }

    #[test]
    fn nobody_removes_itself_or_who_is_heard_of(
        (settings, state) in settings_and_state(),
        me in a_node(),
        wall in a_time(),
    ) {
        let mut made = state.clone();
        let oldest = wall - settings.lost_after();
        let lost = sanitise(&mut made, &me, &settings, |_, last| last < oldest);
        prop_assert!(!lost.contains(&me));
        for node in state.participants.keys() {
            let late = state
                .last_heartbeats
                .get(node)
                .is_some_and(|last| *last < wall - settings.lost_after());
            prop_assert_eq!(lost.contains(node), late && *node != me);
            prop_assert_eq!(made.participants.contains_key(node), !lost.contains(node));
        }
    }

    /// The machine is correct for all answers of the store, at any time.
    ///
    /// It never panics, and sends one request at a time. Every write of a node in a list contains
    /// its heartbeat, and no node joins a closed run (INV-R4).
    #[test]
    fn no_input_breaks_the_machine(
        settings in any_settings(),
        polls in any::<bool>(),
        seed in any::<u64>(),
        events in vec((0_u64..8_000_000, -3_000_000_i64..3_000_000, an_input()), 1..60),
    ) {
        let me = node("c");
        let mut machine = Participant::new(me.clone(), settings, seed);
        if polls {
            machine = machine.polling(Duration::from_secs(1));
        }
        let mut micros = 0;
        let mut asked = 0;
        for (step, skew, input) in events {
            micros += step;
            let now = Now {
                mono: Mono::from_origin(Duration::from_micros(micros)),
                wall: Wall::from_unix_micros(micros as i64 + skew),
            };
            if matches!(input, Input::Read(_) | Input::Written { .. }) {
                asked = 0;
            }
            machine.handle(now, input);
            while let Some(output) = machine.poll_output() {
                match output {
                    Output::Read => asked += 1,
                    Output::Write(state) => {
                        asked += 1;
                        let listed = state.participants.contains_key(&me)
                            || state.wait_list.contains(&me)
                            || state.redundancy_list.contains(&me);
                        let beat = state.last_heartbeats.get(&me);
                        prop_assert!(!listed || beat == Some(&now.wall));
                    }
                    Output::Joined(formed) => {
                        let seen = machine.state().unwrap();
                        prop_assert!(seen.complete && !seen.closed, "INV-R4");
                        let count = formed.participants.len() as u32;
                        prop_assert!(count >= settings.min_nodes, "INV-R3");
                        let participant = formed.participants.get(formed.rank as usize);
                        prop_assert_eq!(participant, Some(&me), "INV-R2");
                    }
                    _ => {}
                }
                prop_assert!(asked <= 1, "two requests at the same time");
            }
            // The deadline is never now, which would be a busy loop.
            if let Some(due) = machine.deadline() {
                prop_assert!(due > now.mono, "busy");
            }
        }
    }
}
