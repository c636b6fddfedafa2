//! Every state is read back as it was written.

use std::collections::BTreeSet;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use rdzv_core::time::Wall;
use rdzv_rendezvous_proto::codec::{decode, encode, from_value, to_value};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState};

/// The range of Python's times, in microseconds since 1970.
const TIMES: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

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
    (scalars, lists, any::<bool>()).prop_map(|(scalars, lists, naive_times)| {
        let (round, complete, deadline, closed) = scalars;
        let (participants, wait_list, redundancy_list, mut last_heartbeats) = lists;
        // As in real states, most nodes have a heartbeat.
        for (at, node) in participants.keys().enumerate().skip(1) {
            last_heartbeats.insert(node.clone(), Wall::from_unix_micros(at as i64));
        }
        let has_times = deadline.is_some() || !last_heartbeats.is_empty();
        RendezvousState {
            has_naive_times: naive_times && has_times,
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
