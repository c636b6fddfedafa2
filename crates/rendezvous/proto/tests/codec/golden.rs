//! Recorded states of PyTorch's agents, and their meanings.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;
use rdzv_core::time::Wall;
use rdzv_rendezvous_proto::codec::{encode, from_value, to_value};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState};
use serde_json::Value;

fn recorded() -> Value {
    serde_json::from_str(include_str!("../golden/rendezvous_state.json")).unwrap()
}

/// Returns every recorded value: its name, its bytes and the described state.
fn all() -> Vec<(String, Value, Value)> {
    let recorded = recorded();
    let take =
        |entry: &Value, name: String| (name, entry["store_value"].clone(), entry["state"].clone());
    let mut all: Vec<_> = recorded["states"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| take(entry, entry["name"].as_str().unwrap().to_owned()))
        .collect();
    for live in recorded["live_sequences"].as_array().unwrap() {
        for write in live["writes"].as_array().unwrap() {
            let name = format!("{}, step {}", live["name"], write["step"]);
            all.push(take(write, name));
        }
    }
    all
}

fn named(name: &str) -> Vec<u8> {
    let recorded = recorded();
    let states = recorded["states"].as_array().unwrap();
    let found = states.iter().find(|entry| entry["name"] == name);
    found.expect(name)["store_value"]
        .as_str()
        .unwrap()
        .as_bytes()
        .to_vec()
}

/// `true` if all times of the state are different.
///
/// The recorder used one object for equal times, which saves bytes. No agent does that.
fn times_differ(state: &RendezvousState) -> bool {
    let times = state.last_heartbeats.values().chain(&state.deadline);
    let count = times.clone().count();
    times.collect::<BTreeSet<_>>().len() == count
}

/// Returns the time in UTC, and `true` if the text has no zone.
fn time(text: &Value) -> (Wall, bool) {
    let text = text.as_str().unwrap();
    let shown: DateTime = text.trim_end_matches('Z').parse().unwrap();
    let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    let micros = shown.duration_since(epoch).as_micros();
    let wall = Wall::from_unix_micros(micros.try_into().unwrap());
    (wall, !text.ends_with('Z'))
}

fn node(entry: &Value) -> NodeDesc {
    NodeDesc {
        addr: entry["addr"].as_str().unwrap().to_owned(),
        pid: entry["pid"].as_i64().unwrap(),
        local_id: entry["local_id"].as_i64().unwrap(),
    }
}

/// Returns the state of a description.
fn described(state: &Value) -> RendezvousState {
    let entries = |name: &str| state[name].as_array().cloned().unwrap_or_default();
    let nodes = |name: &str| -> BTreeSet<NodeDesc> { entries(name).iter().map(node).collect() };
    let mut naive = false;
    let mut wall = |text: &Value| {
        let (wall, without_zone) = time(text);
        naive |= without_zone;
        wall
    };
    let deadline = Some(&state["deadline"]).filter(|deadline| !deadline.is_null());
    let mut expected = RendezvousState {
        round: state["round"].as_u64().unwrap(),
        complete: state["complete"].as_bool().unwrap(),
        deadline: deadline.map(&mut wall),
        closed: state["closed"].as_bool().unwrap(),
        participants: entries("participants")
            .iter()
            .map(|entry| (node(entry), entry["rank"].as_u64().unwrap() as u32))
            .collect(),
        wait_list: nodes("wait_list"),
        redundancy_list: nodes("redundancy_list"),
        last_heartbeats: entries("last_heartbeats")
            .iter()
            .map(|entry| (node(entry), wall(&entry["at"])))
            .collect::<BTreeMap<_, _>>(),
        ..RendezvousState::default()
    };
    expected.has_naive_times = naive;
    expected
}

#[test]
fn every_recorded_state_means_what_it_should_and_is_written_with_the_same_meaning() {
    let all = all();
    assert_eq!(all.len(), 35);
    for (name, value, state) in all {
        let state = described(&state);
        let value = value.as_str().unwrap().as_bytes();
        assert_eq!(from_value(value).unwrap().as_ref(), Some(&state), "{name}");
        let again = from_value(&to_value(&state)).unwrap();
        assert_eq!(again, Some(state), "{name}");
    }
}

#[test]
fn what_is_written_is_as_long_as_what_python_writes_or_shorter() {
    let mut same = 0;
    for (name, value, _) in all() {
        let value = value.as_str().unwrap();
        let state = from_value(value.as_bytes()).unwrap().unwrap();
        if !times_differ(&state) || name == "old_writer_no_redundancy_list" {
            continue;
        }
        let ours = to_value(&state).len();
        // It is shorter if a node has joined again: for Python, these are two equal objects.
        assert!(ours <= value.len(), "{name}: {ours} of {}", value.len());
        same += usize::from(ours == value.len());
    }
    assert!(same >= 20, "{same} of the recorded states are as long");
}

#[test]
fn where_the_order_is_the_same_so_are_the_bytes() {
    let mut same = 0;
    for (name, value, state) in all() {
        let value = value.as_str().unwrap();
        let in_order = |list: &str| {
            let entries = state[list].as_array().cloned().unwrap_or_default();
            entries.iter().map(node).is_sorted()
        };
        let lists = [
            "participants",
            "wait_list",
            "redundancy_list",
            "last_heartbeats",
        ];
        let other_form = [
            "plain_encoding",
            "edge_times",
            "protocol_5",
            "old_writer_no_redundancy_list",
        ];
        let other_form = other_form.contains(&name.as_str());
        if other_form || !lists.into_iter().all(in_order) {
            continue;
        }
        let state = from_value(value.as_bytes()).unwrap().unwrap();
        if !times_differ(&state) {
            continue;
        }
        assert_eq!(
            String::from_utf8(to_value(&state)).unwrap(),
            value,
            "{name}"
        );
        same += 1;
    }
    assert!(same >= 17, "{same} of the recorded states are in order");
}

#[test]
fn the_sentinel_is_no_state() {
    let recorded = recorded();
    let sentinel = recorded["null_sentinel"].as_str().unwrap().as_bytes();
    assert_eq!(from_value(sentinel).unwrap(), None);
    for live in recorded["live_sequences"].as_array().unwrap() {
        let initial = live["initial_store_value"].as_str().unwrap();
        assert_eq!(from_value(initial.as_bytes()).unwrap(), None);
    }
}

#[test]
fn times_without_a_zone_are_written_back_without_one() {
    let state = from_value(&named("old_writer_no_redundancy_list"));
    let state = state.unwrap().unwrap();
    assert!(state.has_naive_times);
    let pickle = encode(&state);
    let contains = |text: &[u8]| pickle.windows(text.len()).any(|window| window == text);
    assert!(!contains(b"timezone"));
}
