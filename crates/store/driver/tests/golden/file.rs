//! Our file store through the recorded steps: same results, same bytes in the file.

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

/// The recorded files, read: every key that the recorded reader saw is there.
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
    let mut members = Members::default();
    let mut length = fs::metadata(&path).map_or(0, |found| found.len() as usize);
    for step in sequence["steps"].as_array().unwrap() {
        let operation = step["op"].as_str().unwrap();
        let outcome = members.perform(operation, &path);
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
    // The recorded `list_keys` cuts the first byte off the store's own keys, too, and so names a
    // key that nobody can get. Ours lists the users' keys.
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

#[derive(Default)]
struct Members {
    a: Option<Box<dyn Store>>,
    b: Option<Box<dyn Store>>,
    c: Option<Box<dyn Store>>,
}

impl Members {
    fn perform(&mut self, operation: &str, path: &Path) -> Outcome {
        let open = |world_size| -> Option<Box<dyn Store>> {
            Some(Box::new(FileStore::open(path, world_size).unwrap()))
        };
        let (call, _remark) = operation.split_once("  ").unwrap_or((operation, ""));
        match call.split(['=', ':']).next().unwrap().trim() {
            "a" => {
                let digits = call.rsplit_once(',').unwrap().1.trim_end_matches(')');
                self.a = open(Some(digits.parse().unwrap()));
                return Outcome::Nothing;
            }
            "b" if call.starts_with("b = FileStore(path,2)") => {
                self.b = open(Some(2));
                return Outcome::Nothing;
            }
            "c" => {
                self.c = Some(self.a.as_ref().unwrap().try_clone().unwrap());
                return Outcome::Nothing;
            }
            "FileStore(path)" => {
                self.a = open(None);
                return Outcome::Nothing;
            }
            "destroy a" | "destroy the store" => self.a = None,
            "destroy b" => self.b = None,
            "destroy c" => self.c = None,
            _ => return self.on_store(call),
        }
        Outcome::Nothing
    }

    fn on_store(&self, call: &str) -> Outcome {
        let (store, call) = match call.split_once('.') {
            Some(("b", call)) => (&self.b, call),
            Some(("a", call)) => (&self.a, call),
            _ => (&self.a, call),
        };
        let store = store.as_ref().unwrap();
        let second = Duration::from_secs(1);
        match call.split(" counts").next().unwrap() {
            "set(\"k1\",\"v1\")" => Outcome::of(store.set("k1", b"v1")),
            "get(\"k1\")" => Outcome::of(store.get("k1")),
            "set(\"k1\",\"v2\")" => Outcome::of(store.set("k1", b"v2")),
            "set(\"empty\",\"\")" => Outcome::of(store.set("empty", b"")),
            "set(\"bin\", bytes 00 01 fe ff)" => Outcome::of(store.set("bin", &[0, 1, 254, 255])),
            "set(\"\",\"v\")" => Outcome::of(store.set("", b"v")),
            "add(\"ctr\",5)" => Outcome::of(store.add("ctr", 5)),
            "add(\"ctr\",-7)" => Outcome::of(store.add("ctr", -7)),
            "get(\"ctr\")" => Outcome::of(store.get("ctr")),
            "add(\"k1\",1) on text that is not a number" => Outcome::of(store.add("k1", 1)),
            "add(\"empty\",1) on an empty value" => Outcome::of(store.add("empty", 1)),
            "compare_set(\"cas\",\"\",\"one\")" => {
                Outcome::of(store.compare_set("cas", b"", b"one"))
            }
            "compare_set(\"cas\",\"one\",\"two\")" => {
                Outcome::of(store.compare_set("cas", b"one", b"two"))
            }
            "compare_set(\"cas\",\"one\",\"three\")" => {
                Outcome::of(store.compare_set("cas", b"one", b"three"))
            }
            "compare_set(\"casx\",\"foo\",\"bar\")" => {
                Outcome::of(store.compare_set("casx", b"foo", b"bar"))
            }
            "check([\"k1\",\"casx\"])" => Outcome::of(store.check(&["k1", "casx"])),
            "check([])" => Outcome::of(store.check(&[])),
            "num_keys()" => Outcome::of(store.num_keys()),
            list if list.starts_with("list_keys()") => Outcome::of(store.list_keys()),
            "delete_key(\"k1\")" => Outcome::of(store.delete_key("k1")),
            "delete_key(\"never\")" => Outcome::of(store.delete_key("never")),
            "check([\"k1\"])" => Outcome::of(store.check(&["k1"])),
            "append(\"app\",\"ab\")" => Outcome::of(store.append("app", b"ab")),
            "append(\"app\",\"cd\")" => Outcome::of(store.append("app", b"cd")),
            "multi_set([\"m1\",\"m2\"],[\"a\",\"b\"])" => {
                Outcome::of(store.multi_set(&[("m1", b"a"), ("m2", b"b")]))
            }
            "multi_get([\"m1\",\"m2\"])" => Outcome::of(store.multi_get(&["m1", "m2"])),
            "barrier(\"bar\",1)" => Outcome::of(store.barrier("bar", 1, None)),
            "has_extended_api()" => Outcome::Bool(store.has_extended_api()),
            "queue_push(\"q\",\"x\")" => Outcome::of(store.queue_push("q", b"x")),
            "get(\"absent\") with timeout 1 s" => {
                store.set_timeout(second);
                Outcome::of(store.get("absent"))
            }
            "wait([\"absent\"], 1 s)" => Outcome::of(store.wait(&["absent"], Some(second))),
            "set(\"-x\",\"v\")" => Outcome::of(store.set("-x", b"v")),
            "set(\"x\",\"1\")" => Outcome::of(store.set("x", b"1")),
            "get(\"x\")" => Outcome::of(store.get("x")),
            "get(\"old\") returns the stale value" => Outcome::of(store.get("old")),
            other => panic!("{other:?} is not known"),
        }
    }
}
