//! Every state is read back as it was written.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use rdzv_core::time::Wall;
use rdzv_pickle::{Class, Time, Value};
use rdzv_rendezvous_proto::codec::{decode, encode, from_value, to_value};
use rdzv_rendezvous_proto::{Dialect, NodeDesc, RendezvousState};

/// The range of Python's times, in microseconds since 1970.
const TIMES: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

const DAY: i64 = 86_400_000_000;

fn node() -> impl Strategy<Value = NodeDesc> {
    let addr = prop_oneof![
        4 => "[a-c]{1,3}",
        1 => any::<String>(),
        1 => (200..600_usize).prop_map(|length| "x".repeat(length)),
    ];
    let number = || prop_oneof![0..300_i64, any::<i64>()];
    (addr, number(), number()).prop_map(|(addr, pid, local_id)| NodeDesc {
        addr,
        pid,
        local_id,
    })
}

fn wall() -> impl Strategy<Value = Wall> {
    TIMES.prop_map(Wall::from_unix_micros)
}

fn value() -> impl Strategy<Value = Value> {
    let class = prop::sample::select(Class::ALL.to_vec());
    let zone = -DAY + 1..DAY;
    let time = (TIMES, prop::option::of(zone.clone()));
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i128>().prop_map(Value::Int),
        any::<i16>().prop_map(|number| Value::Int(number.into())),
        any::<u64>().prop_map(Value::Float),
        any::<String>().prop_map(Value::Text),
        vec(any::<u8>(), 0..300).prop_map(Value::Bytes),
        any::<i64>().prop_map(|micros| Value::Span(micros.into())),
        zone.prop_map(Value::Zone),
        time.prop_map(|(shown, zone)| Value::Time(Time { shown, zone })),
        class.prop_map(Value::Class),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        let pairs = vec((inner.clone(), inner.clone()), 0..5);
        let class = prop::sample::select(vec![Class::State, Class::Node]);
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Tuple),
            vec(inner.clone(), 0..6).prop_map(Value::List),
            vec(inner, 0..6).prop_map(Value::Set),
            pairs.clone().prop_map(Value::Dict),
            (class, pairs).prop_map(|(class, pairs)| Value::Object(class, pairs)),
        ]
    })
}

/// Generates attributes of a later release.
fn attributes() -> impl Strategy<Value = Vec<(Value, Value)>> {
    let name = "later_[a-z]{0,8}".prop_map(Value::Text);
    vec((name, value()), 0..3)
}

fn state() -> impl Strategy<Value = RendezvousState> {
    let scalars = (
        any::<u64>(),
        any::<bool>(),
        prop::option::of(wall()),
        any::<bool>(),
    );
    let lists = (
        btree_map(node(), any::<u32>(), 0..12),
        btree_set(node(), 0..4),
        btree_set(node(), 0..4),
        btree_map(node(), wall(), 0..4),
    );
    let dialect = (
        any::<bool>(),
        any::<bool>(),
        attributes(),
        vec((any::<prop::sample::Index>(), attributes()), 0..3),
    );
    (scalars, lists, dialect).prop_map(|(scalars, lists, dialect)| {
        let (round, complete, deadline, closed) = scalars;
        let (participants, wait_list, redundancy_list, mut last_heartbeats) = lists;
        // As in real states, most nodes have a heartbeat.
        for (at, node) in participants.keys().enumerate().skip(1) {
            last_heartbeats.insert(node.clone(), Wall::from_unix_micros(at as i64));
        }
        let (naive_times, no_redundancy_list, attributes, of_nodes) = dialect;
        let has_times = deadline.is_some() || !last_heartbeats.is_empty();
        let known: Vec<NodeDesc> = participants.keys().chain(&wait_list).cloned().collect();
        let node_attributes: BTreeMap<_, _> = of_nodes
            .into_iter()
            .filter(|(_, attributes)| !attributes.is_empty() && !known.is_empty())
            .map(|(index, attributes)| (index.get(&known).clone(), attributes))
            .collect();
        RendezvousState {
            dialect: Dialect {
                naive_times: naive_times && has_times,
                no_redundancy_list: no_redundancy_list && redundancy_list.is_empty(),
                attributes,
                node_attributes,
            },
            round,
            complete,
            deadline,
            closed,
            participants,
            wait_list,
            redundancy_list,
            last_heartbeats,
        }
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(state in state()) {
        prop_assert_eq!(decode(&encode(&state)), Ok(state.clone()));
        prop_assert_eq!(from_value(&to_value(&state)), Ok(Some(state)));
    }

    #[test]
    fn a_beginning_is_never_taken_for_the_whole(state in state(), at in any::<prop::sample::Index>()) {
        let pickle = encode(&state);
        let cut = &pickle[..at.index(pickle.len())];
        prop_assert!(decode(cut).is_err());
    }

    #[test]
    fn a_damaged_state_is_read_or_refused(
        state in state(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut pickle = encode(&state);
        for (at, byte) in damage {
            let at = at.index(pickle.len());
            pickle[at] = byte;
        }
        if let Ok(read) = decode(&pickle) {
            prop_assert_eq!(decode(&encode(&read)), Ok(read));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
        let _ = from_value(&bytes);
    }
}

#[test]
fn large_states_are_read_back() {
    for count in [999, 1000, 1001, 12_000] {
        let nodes: BTreeSet<NodeDesc> = (0..count)
            .map(|number| {
                NodeDesc::new(
                    format!("node-{number:05}.cluster.example.com"),
                    1000 + number,
                )
            })
            .collect();
        let ranked = nodes.iter().cloned().zip(0..);
        let at = |number: i64| Wall::from_unix_micros(1_800_000_000_000_000 + number);
        let state = RendezvousState {
            complete: true,
            participants: ranked.collect(),
            last_heartbeats: nodes.iter().cloned().zip((0..).map(at)).collect(),
            ..RendezvousState::default()
        };
        assert_eq!(decode(&encode(&state)), Ok(state), "{count} nodes");
    }
}
