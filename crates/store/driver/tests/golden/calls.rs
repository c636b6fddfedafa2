//! The calls that were made when the TCP exchanges were recorded.

use std::sync::Arc;
use std::time::Duration;

use rdzv_store::{PrefixStore, Store, TcpStore};

use crate::Outcome;

fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Makes the calls of connection A in an exchange; `None` if there were none.
pub(crate) fn of_first(exchange: &str, store: &Arc<TcpStore>) -> Option<Outcome> {
    single(exchange, store).or_else(|| waiting(exchange, &**store))
}

fn single(exchange: &str, store: &Arc<TcpStore>) -> Option<Outcome> {
    let get = |key: &str| Outcome::of(store.get(key));
    let set = |key: &str, value: &[u8]| Outcome::of(store.set(key, value));
    let compare_set = |key: &str, expected: &str, desired: &str| {
        Outcome::of(store.compare_set(key, expected.as_bytes(), desired.as_bytes()))
    };
    let prefixed = |prefix: &str| PrefixStore::new(prefix, Arc::clone(store) as Arc<dyn Store>);
    let every: Vec<u8> = (0..=255).collect();
    Some(match exchange {
        "set" => set("k1", b"v1"),
        "get" => get("k1"),
        "set_overwrite" => set("k1", b"v2"),
        "set_empty_value" => set("empty", b""),
        "get_empty_value" => get("empty"),
        "set_binary" => set("bin", &every),
        "get_binary" => get("bin"),
        "set_utf8_key" => set("ключ/é", b"v"),
        "set_empty_key" => set("", b"v"),
        "set_3000" => set("v3000", &[b'a'; 3000]),
        "get_3000" => get("v3000"),
        "set_1mib" => set("v1m", &vec![b'z'; 1 << 20]),
        "get_1mib" => get("v1m"),
        "cas_absent_empty_expected" => compare_set("cas", "", "one"),
        "cas_match" => compare_set("cas", "one", "two"),
        "cas_mismatch" => compare_set("cas", "one", "three"),
        "cas_present_empty_expected" => compare_set("cas", "", "three"),
        "cas_absent_nonempty_expected" => compare_set("casx", "foo", "bar"),
        "check_after_failed_cas" => Outcome::of(store.check(&["casx"])),
        "cas_empty_to_value" => compare_set("empty", "", "full"),
        "cas_to_empty" => compare_set("empty", "full", ""),
        "add_new" => Outcome::of(store.add("ctr", 5)),
        "add_negative" => Outcome::of(store.add("ctr", -7)),
        "add_zero" => Outcome::of(store.add("ctr", 0)),
        "get_counter" => get("ctr"),
        "add_prefix_number" => add_to(store, "n1", "12abc"),
        "add_whitespace_number" => add_to(store, "n2", " \t+42"),
        "add_overflow" => add_to(store, "n3", "9223372036854775807"),
        "check_one_present" => Outcome::of(store.check(&["k1"])),
        "check_one_absent" => Outcome::of(store.check(&["k1", "nope"])),
        "check_empty_list" => Outcome::of(store.check(&[])),
        "wait_present" => Outcome::of(store.wait(&["k1", "ctr"], None)),
        "wait_empty_list" => Outcome::of(store.wait(&[], None)),
        "wait_timeout" => Outcome::of(store.wait(&["nope"], Some(millis(200)))),
        "wait_timeout_zero" => Outcome::of(store.wait(&["nope", "k1"], Some(millis(0)))),
        "get_timeout" => {
            store.set_timeout(millis(150));
            get("nope")
        }
        "multi_get_timeout" => {
            let outcome = Outcome::of(store.multi_get(&["k1", "nope"]));
            store.set_timeout(Duration::from_secs(20));
            outcome
        }
        "append_new" => Outcome::of(store.append("app", b"ab")),
        "append_existing" => Outcome::of(store.append("app", b"cd")),
        "append_empty" => Outcome::of(store.append("app", b"")),
        "get_appended" => get("app"),
        "multi_set" => Outcome::of(store.multi_set(&[("m1", b"a"), ("m2", b""), ("m3", b"ccc")])),
        "multi_get" => Outcome::of(store.multi_get(&["m1", "m2", "m3"])),
        "multi_get_duplicate" => Outcome::of(store.multi_get(&["m1", "m1"])),
        "multi_set_empty" => Outcome::of(store.multi_set(&[])),
        "multi_get_empty" => Outcome::of(store.multi_get(&[])),
        "delete_present" | "delete_absent" => Outcome::of(store.delete_key("m1")),
        "num_keys" | "num_keys_ignores_queues" | "num_keys_after_init" => {
            Outcome::of(store.num_keys())
        }
        "barrier_world_1" | "barrier_reuse" => Outcome::of(store.barrier("b1", 1, None)),
        "get_barrier_counter" => get("b1"),
        "barrier_timeout" => Outcome::of(store.barrier("b2", 2, Some(millis(200)))),
        "get_barrier_counter_after_timeout" => get("b2"),
        "barrier_after_timeout" => Outcome::of(store.barrier("b2", 2, None)),
        "queue_len_absent" | "queue_len" => Outcome::of(store.queue_len("q")),
        "queue_push" => Outcome::of(store.queue_push("q", b"one")),
        "queue_push_2" => Outcome::of(store.queue_push("q", b"two")),
        "check_queue" => Outcome::of(store.check(&["q"])),
        "queue_pop_block" => Outcome::of(store.queue_pop("q", true)),
        "queue_pop_nonblock" | "queue_pop_empty" => Outcome::of(store.queue_pop("q", false)),
        "delete_queue" => {
            store.queue_push("q2", b"x").unwrap();
            let deleted = Outcome::of(store.delete_key("q2"));
            Outcome::List(vec![deleted, Outcome::of(store.queue_len("q2"))])
        }
        "list_keys" | "list_keys_after_init" => Outcome::of(store.list_keys()),
        "prefix_store" => {
            let store = prefixed("p");
            store.set("a", b"1").unwrap();
            Outcome::of(store.get("a"))
        }
        "prefix_store_nested" => {
            let store = PrefixStore::new("outer", Arc::new(prefixed("inner")));
            Outcome::of(store.add("a", 1).map(drop))
        }
        "prefix_store_barrier" => Outcome::of(prefixed("p").barrier("bar", 1, None)),
        "clone" => Outcome::of(store.try_clone().map(drop)),
        _ => return None,
    })
}

fn add_to(store: &TcpStore, key: &str, text: &str) -> Outcome {
    store.set(key, text.as_bytes()).unwrap();
    let sum = Outcome::of(store.add(key, 1));
    Outcome::List(vec![sum, Outcome::of(store.get(key))])
}

/// Makes the calls of the first of two clients, which waits for the second.
fn waiting(exchange: &str, store: &dyn Store) -> Option<Outcome> {
    let wait = |keys: &[&str]| Outcome::of(store.wait(keys, Some(Duration::from_secs(20))));
    let getting = |key: &str| {
        store.set_timeout(millis(600));
        let outcome = Outcome::of(store.get(key));
        store.set_timeout(Duration::from_secs(20));
        outcome
    };
    Some(match exchange {
        "wait_then_set" => wait(&["w1"]),
        "wait_two_keys" => wait(&["w2", "w3"]),
        "wait_add" => wait(&["w4"]),
        "wait_append" => wait(&["w5"]),
        "wait_multi_set" => wait(&["w6", "w7"]),
        "get_blocks" => Outcome::of(store.get("w8")),
        "multi_get_blocks" => Outcome::of(store.multi_get(&["w8", "w9"])),
        "wait_duplicate_key" => wait(&["w10", "w10"]),
        "wait_cas_created" => Outcome::of(store.wait(&["w11"], Some(millis(600)))),
        "wait_cas_failed_absent" => getting("w12"),
        "barrier_two" => Outcome::of(store.barrier("bar", 2, None)),
        "barrier_woken_by_set" => Outcome::of(store.barrier("bs", 2, None)),
        "queue_pop_blocks" => Outcome::of(store.queue_pop("q", true)),
        "delete_does_not_wake" => wait(&["d1"]),
        _ => return None,
    })
}

/// Makes the calls of connection B at the same time; `None` if there were none.
pub(crate) fn of_second(exchange: &str, store: &dyn Store) -> Option<Outcome> {
    let set = |key: &str, value: &[u8]| Outcome::of(store.set(key, value));
    Some(match exchange {
        "wait_then_set" => set("w1", b"v"),
        "wait_two_keys" => {
            set("w2", b"v");
            set("w3", b"v")
        }
        "wait_add" => Outcome::of(store.add("w4", 1)),
        "wait_append" => Outcome::of(store.append("w5", b"x")),
        "wait_multi_set" => Outcome::of(store.multi_set(&[("w6", b"1"), ("w7", b"2")])),
        "get_blocks" => set("w8", b"hello"),
        "multi_get_blocks" => set("w9", b"bye"),
        "wait_duplicate_key" => set("w10", b"v"),
        "wait_cas_created" => Outcome::of(store.compare_set("w11", b"", b"v")),
        "wait_cas_failed_absent" => Outcome::of(store.compare_set("w12", b"foo", b"bar")),
        "barrier_two" => Outcome::of(store.barrier("bar", 2, None)),
        "barrier_woken_by_set" => set("bs", b"9"),
        "queue_pop_blocks" => Outcome::of(store.queue_push("q", b"item")),
        "delete_does_not_wake" => {
            let deleted = Outcome::of(store.delete_key("d1"));
            set("d1", b"v");
            deleted
        }
        _ => return None,
    })
}
