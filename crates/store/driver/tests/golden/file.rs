//! Tests of rdzv's file store with the recorded steps.
//!
//! Results and bytes in the file are the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rdzv_store::{FileStore, Store};
use serde_json::Value;

use crate::Outcome;
use crate::recorded::unhex;

const RECORDED: &str = include_str!("../../../proto/tests/golden/filestore.json");

#[test]
fn every_operation() {
    replay("basic");
}

#[test]
fn the_last_of_two_members_removes_the_file() {
    replay("two_members");
}

#[test]
fn a_file_is_not_removed_before_all_have_come() {
    replay("early_removal");
}

#[test]
fn a_file_that_a_crash_left_is_read_on() {
    replay("stale_file");
}

#[test]
fn a_world_of_nobody_removes_the_file_at_once() {
    replay("world_zero");
}

/// The recorded files can be read completely, and all their keys are counted.
#[test]
fn recorded_files_are_read() {
    for sequence in sequences() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let content = unhex(sequence["final_file_hex"].as_str().unwrap()).unwrap();
        fs::write(&path, &content).unwrap();
        let mut journal = rdzv_store_proto::journal::Journal::default();
        let replayed = journal.replay(&content);
        assert_eq!(replayed.consumed, content.len());
        let store = FileStore::open(&path, None).unwrap();
        assert_eq!(store.num_keys().unwrap(), journal.len() as u64);
        if sequence["id"] == "basic" {
            assert_eq!(store.get("app").unwrap(), "abcd");
            assert_eq!(store.get("-x").unwrap(), "v");
            assert!(!store.check(&["k1"]).unwrap());
        }
    }
}

fn sequences() -> Vec<Value> {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    recorded["sequences"].as_array().unwrap().clone()
}

fn replay(id: &str) {
    let sequence = sequences().into_iter().find(|found| found["id"] == id);
    let sequence = sequence.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    if let Some(initial) = sequence["initial_file_hex"].as_str() {
        fs::write(&path, unhex(initial).unwrap()).unwrap();
    }
    let mut members = Members::new();
    let mut length = fs::metadata(&path).map_or(0, |found| found.len() as usize);
    for step in sequence["steps"].as_array().unwrap() {
        let operation = step["op"].as_str().unwrap();
        let outcome = perform(&mut members, operation, &path);
        assert_outcome(operation, &outcome, &step["result"]);
        if step["file"] == "absent" {
            assert!(!path.exists(), "{operation}");
            continue;
        }
        let content = fs::read(&path).unwrap();
        let appended = unhex(step["appended_hex"].as_str().unwrap()).unwrap();
        assert_eq!(content[length..], appended, "{operation}");
        assert_eq!(step["file_length"], content.len(), "{operation}");
        length = content.len();
    }
}

fn assert_outcome(operation: &str, outcome: &Outcome, recorded: &Value) {
    let recorded = recorded.get("returns").unwrap_or(recorded);
    // The recorded `list_keys` also cuts the first byte off the store's own keys. So it names a key
    // that no client can get. rdzv lists the users' keys.
    let mangled = Value::from("efcount/");
    let without_mangled = recorded.as_array().map(|keys| {
        let keys = keys.iter().filter(|key| **key != mangled);
        Value::from_iter(keys.cloned())
    });
    let recorded = without_mangled.as_ref().unwrap_or(recorded);
    assert!(
        outcome.matches(recorded),
        "{operation}: {outcome:?}, recorded: {recorded}"
    );
}

/// The open stores, by their names in the recording.
type Members = BTreeMap<String, Box<dyn Store>>;

fn perform(members: &mut Members, operation: &str, path: &Path) -> Outcome {
    let open =
        |world_size| -> Box<dyn Store> { Box::new(FileStore::open(path, world_size).unwrap()) };
    let (call, _remark) = operation.split_once("  ").unwrap_or((operation, ""));
    let (name, store) = match call.split(['=', ':']).next().unwrap().trim() {
        name @ ("a" | "b") => {
            let digits = call.split([',', ')']).nth(1).unwrap();
            (name, open(Some(digits.parse().unwrap())))
        }
        "c" => ("c", members["a"].try_clone().unwrap()),
        "FileStore(path)" => ("a", open(None)),
        "destroy a" | "destroy the store" => return destroy(members, "a"),
        "destroy b" => return destroy(members, "b"),
        "destroy c" => return destroy(members, "c"),
        _ => return on_store(members, call),
    };
    members.insert(name.to_owned(), store);
    Outcome::Nothing
}

fn destroy(members: &mut Members, name: &str) -> Outcome {
    members.remove(name);
    Outcome::Nothing
}

/// Makes a call as the recording writes it, such as `b.set("key","value")`.
fn on_store(members: &Members, call: &str) -> Outcome {
    let (member, call) = match call.split_once('.') {
        Some((member @ ("a" | "b"), call)) => (member, call),
        _ => ("a", call),
    };
    let store = &members[member];
    let second = Duration::from_secs(1);
    let (name, arguments) = call.split_once('(').unwrap();
    let texts: Vec<&str> = arguments.split('"').skip(1).step_by(2).collect();
    match (name, &texts[..]) {
        ("set", ["bin"]) => Outcome::of(store.set("bin", &[0, 1, 254, 255])),
        ("set", [key, value]) => Outcome::of(store.set(key, value.as_bytes())),
        ("get", [key]) => {
            if arguments.ends_with("with timeout 1 s") {
                store.set_timeout(second);
            }
            Outcome::of(store.get(key))
        }
        ("add", [key]) => {
            let digits = arguments.split([',', ')']).nth(1).unwrap();
            Outcome::of(store.add(key, digits.parse().unwrap()))
        }
        ("compare_set", [key, expected, desired]) => {
            let (expected, desired) = (expected.as_bytes(), desired.as_bytes());
            Outcome::of(store.compare_set(key, expected, desired))
        }
        ("check", keys) => Outcome::of(store.check(keys)),
        ("num_keys", []) => Outcome::of(store.num_keys()),
        ("list_keys", []) => Outcome::of(store.list_keys()),
        ("delete_key", [key]) => Outcome::of(store.delete_key(key)),
        ("append", [key, value]) => Outcome::of(store.append(key, value.as_bytes())),
        ("multi_set", [one, other, first, second]) => {
            let pairs = [(*one, first.as_bytes()), (*other, second.as_bytes())];
            Outcome::of(store.multi_set(&pairs))
        }
        ("multi_get", keys) => Outcome::of(store.multi_get(keys)),
        ("barrier", [key]) => Outcome::of(store.barrier(key, 1, None)),
        ("has_extended_api", []) => Outcome::Bool(store.has_extended_api()),
        ("queue_push", [key, value]) => Outcome::of(store.queue_push(key, value.as_bytes())),
        ("wait", keys) => Outcome::of(store.wait(keys, Some(second))),
        _ => panic!("{call:?} is not known"),
    }
}
