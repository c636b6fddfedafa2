//! Tests of values, counters, comparing and listing.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rdzv_store::StoreError;

use crate::stores::Shared;

crate::behaviours!(basics:
    a_value_set_is_got,
    values_are_any_bytes,
    keys_are_any_text,
    a_counter_is_decimal_text,
    adding_to_text_is_refused,
    compare_set_follows_the_reference,
    one_of_many_compare_sets_wins,
    no_concurrent_add_is_lost,
    no_concurrent_append_is_lost,
    check_wants_all_keys,
    a_deleted_key_is_gone,
    appends_add_up,
    several_values_keep_their_order,
    several_values_appear_together,
    keys_are_listed,
    keys_are_counted,
    big_values_pass,
    a_timeout_can_be_changed,
    a_clone_sees_the_same_data,
);

fn a_value_set_is_got<S: Shared>(shared: &S) {
    let (one, other) = (shared.member(), shared.member());
    one.set("key", b"first").unwrap();
    assert_eq!(other.get("key").unwrap(), "first");
    other.set("key", b"second").unwrap();
    assert_eq!(one.get("key").unwrap(), "second");
}

fn values_are_any_bytes<S: Shared>(shared: &S) {
    let store = shared.member();
    let every: Vec<u8> = (0..=255).collect();
    store.set("binary", &every).unwrap();
    store.set("empty", b"").unwrap();
    assert_eq!(store.get("binary").unwrap(), every);
    assert_eq!(store.get("empty").unwrap(), "");
}

fn keys_are_any_text<S: Shared>(shared: &S) {
    let store = shared.member();
    for key in ["", "/", "-x", "refcount/", "init/", "ключ/é", "a b\n"] {
        store.set(key, key.as_bytes()).unwrap();
        assert_eq!(store.get(key).unwrap(), key.as_bytes());
    }
}

fn a_counter_is_decimal_text<S: Shared>(shared: &S) {
    let store = shared.member();
    assert_eq!(store.add("counter", 5).unwrap(), 5);
    assert_eq!(store.add("counter", -7).unwrap(), -2);
    assert_eq!(store.get("counter").unwrap(), "-2");
    store.set("counter", b" \t+42 apples").unwrap();
    assert_eq!(store.add("counter", 1).unwrap(), 43);
    assert_eq!(store.get("counter").unwrap(), "43");
}

fn adding_to_text_is_refused<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set("text", b"apples").unwrap();
    let error = store.add("text", 1).unwrap_err().to_string();
    assert!(error.contains("text"), "{error}");
    assert_eq!(shared.member().get("text").unwrap(), "apples");
}

fn compare_set_follows_the_reference<S: Shared>(shared: &S) {
    let store = shared.member();
    let held = |expected: &str, desired: &str| {
        store
            .compare_set("key", expected.as_bytes(), desired.as_bytes())
            .unwrap()
    };
    assert_eq!(held("foo", "bar"), "foo", "absent and something expected");
    assert!(!store.check(&["key"]).unwrap());
    assert_eq!(held("", "one"), "one", "absent and nothing expected");
    assert_eq!(held("one", "two"), "two", "as expected");
    assert_eq!(held("one", "three"), "two", "not as expected");
    assert_eq!(
        held("", "three"),
        "two",
        "something there, nothing expected"
    );
    assert_eq!(held("two", ""), "", "to nothing");
    assert_eq!(held("", "four"), "four", "an empty value is as expected");
}

fn one_of_many_compare_sets_wins<S: Shared>(shared: &S) {
    let start = Barrier::new(8);
    let winners: Vec<usize> = thread::scope(|scope| {
        let members: Vec<_> = (0..8)
            .map(|member| {
                let (store, start) = (shared.member(), &start);
                scope.spawn(move || {
                    let mine = format!("member {member}");
                    start.wait();
                    let held = store.compare_set("leader", b"", mine.as_bytes()).unwrap();
                    (held == mine.as_bytes()).then_some(member)
                })
            })
            .collect();
        members
            .into_iter()
            .filter_map(|member| member.join().unwrap())
            .collect()
    });
    assert_eq!(winners.len(), 1, "{winners:?}");
}

fn no_concurrent_add_is_lost<S: Shared>(shared: &S) {
    const TIMES: i64 = 50;
    let mut sums: Vec<i64> = thread::scope(|scope| {
        let members: Vec<_> = (0..4)
            .map(|_| {
                let store = shared.member();
                scope.spawn(move || {
                    (0..TIMES)
                        .map(|_| store.add("counter", 1).unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        members
            .into_iter()
            .flat_map(|member| member.join().unwrap())
            .collect()
    });
    sums.sort_unstable();
    assert_eq!(sums, (1..=4 * TIMES).collect::<Vec<_>>());
}

fn no_concurrent_append_is_lost<S: Shared>(shared: &S) {
    thread::scope(|scope| {
        for letter in [b"a", b"b", b"c", b"d"] {
            let store = shared.member();
            scope.spawn(move || (0..20).for_each(|_| store.append("log", letter).unwrap()));
        }
    });
    let mut log = shared.member().get("log").unwrap().to_vec();
    log.sort_unstable();
    assert_eq!(
        log,
        [[b'a'; 20], [b'b'; 20], [b'c'; 20], [b'd'; 20]].concat()
    );
}

fn check_wants_all_keys<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set("here", b"").unwrap();
    assert!(store.check(&[]).unwrap());
    assert!(store.check(&["here", "here"]).unwrap());
    assert!(!store.check(&["here", "gone"]).unwrap());
}

fn a_deleted_key_is_gone<S: Shared>(shared: &S) {
    let (one, other) = (shared.member(), shared.member());
    one.set("key", b"value").unwrap();
    assert!(one.delete_key("key").unwrap());
    assert!(!other.check(&["key"]).unwrap());
    assert_eq!(one.delete_key("key").unwrap(), !S::DELETE_TELLS);
    assert_eq!(other.compare_set("key", b"", b"again").unwrap(), "again");
}

fn appends_add_up<S: Shared>(shared: &S) {
    let store = shared.member();
    for part in ["ab", "cd", ""] {
        store.append("key", part.as_bytes()).unwrap();
    }
    assert_eq!(store.get("key").unwrap(), "abcd");
}

fn several_values_keep_their_order<S: Shared>(shared: &S) {
    let store = shared.member();
    store
        .multi_set(&[("one", b"1"), ("none", b""), ("three", b"333")])
        .unwrap();
    store.multi_set(&[]).unwrap();
    let values = store.multi_get(&["three", "one", "none", "one"]).unwrap();
    assert_eq!(values, ["333", "1", "", "1"]);
    assert!(store.multi_get(&[]).unwrap().is_empty());
}

fn several_values_appear_together<S: Shared>(shared: &S) {
    let (writer, reader) = (shared.member(), shared.member());
    assert_eq!(writer.has_extended_api(), S::IS_EXTENDED);
    writer.multi_set(&[("one", b"0"), ("two", b"0")]).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..100 {
                let value = number.to_string();
                let value = value.as_bytes();
                writer.multi_set(&[("one", value), ("two", value)]).unwrap();
            }
        });
        for _ in 0..100 {
            let values = reader.multi_get(&["one", "two"]).unwrap();
            // A store without an operation for several keys does not guarantee this.
            assert!(values[0] == values[1] || !reader.has_extended_api());
        }
    });
}

fn keys_are_listed<S: Shared>(shared: &S) {
    let store = shared.member();
    for key in ["", "a", "a/b", "refcount/"] {
        store.set(key, b"").unwrap();
    }
    store.set("gone", b"").unwrap();
    store.delete_key("gone").unwrap();
    let keys: BTreeSet<String> = store.list_keys().unwrap().into_iter().collect();
    assert_eq!(
        keys,
        BTreeSet::from(["", "a", "a/b", "refcount/"].map(String::from))
    );
}

fn keys_are_counted<S: Shared>(shared: &S) {
    let store = shared.member();
    let before = store.num_keys().unwrap();
    store.set("a", b"").unwrap();
    store.add("b", 0).unwrap();
    store.set("a", b"again").unwrap();
    assert_eq!(store.num_keys().unwrap(), before + 2);
}

fn big_values_pass<S: Shared>(shared: &S) {
    let (one, other) = (shared.member(), shared.member());
    let big: Vec<u8> = (0..3_000_017_u32).map(|number| number as u8).collect();
    one.set("big", &big).unwrap();
    assert!(other.get("big").unwrap() == big);
    one.set("after", b"x").unwrap();
    assert_eq!(other.multi_get(&["after", "big"]).unwrap()[0], "x");
}

fn a_timeout_can_be_changed<S: Shared>(shared: &S) {
    let store = shared.member();
    assert_eq!(store.timeout(), Duration::from_secs(300));
    store.set_timeout(Duration::from_micros(20_900));
    assert_eq!(store.timeout(), Duration::from_millis(20));
    let error = store.get("never").unwrap_err();
    assert!(matches!(error, StoreError::WaitTimeout { .. }), "{error}");
}

fn a_clone_sees_the_same_data<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set_timeout(Duration::from_secs(7));
    let clone = store.try_clone().unwrap();
    clone.set("key", b"value").unwrap();
    assert_eq!(store.get("key").unwrap(), "value");
    assert_eq!(clone.timeout(), Duration::from_secs(7));
    drop(store);
    assert_eq!(clone.get("key").unwrap(), "value");
}
