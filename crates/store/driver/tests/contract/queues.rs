//! Tests of queues: first in, first out, separate from the keys.

use std::thread;
use std::time::Duration;

use rdzv_store::StoreError;

use crate::stores::Shared;
use crate::{LONG, SHORT};

crate::behaviours!(queues:
    values_leave_in_the_order_they_came,
    queues_are_not_keys,
    a_pop_waits_for_a_push,
    every_value_is_popped_once,
    a_store_without_queues_says_so,
);

fn values_leave_in_the_order_they_came<S: Shared>(shared: &S) {
    if !S::HAS_QUEUES {
        return refuses_queues(shared);
    }
    let (one, other) = (shared.member(), shared.member());
    assert_eq!(one.queue_len("queue").unwrap(), 0);
    for value in [&b"1"[..], b"", b"3"] {
        one.queue_push("queue", value).unwrap();
    }
    assert_eq!(other.queue_len("queue").unwrap(), 3);
    for value in ["1", "", "3"] {
        assert_eq!(other.queue_pop("queue", value == "1").unwrap(), value);
    }
    let error = other.queue_pop("queue", false).unwrap_err();
    assert!(matches!(error, StoreError::QueueEmpty { .. }), "{error}");
    assert!(error.to_string().starts_with("queue is empty"), "{error}");
}

fn queues_are_not_keys<S: Shared>(shared: &S) {
    if !S::HAS_QUEUES {
        return refuses_queues(shared);
    }
    let store = shared.member();
    let before = store.num_keys().unwrap();
    store.queue_push("name", b"queued").unwrap();
    assert!(store.check(&["name"]).unwrap(), "a filled queue is present");
    store.wait(&["name"], Some(SHORT)).unwrap();
    assert!(!store.delete_key("name").unwrap());
    assert_eq!(store.num_keys().unwrap(), before);
    assert!(store.list_keys().unwrap().is_empty());
    store.set("name", b"kept").unwrap();
    assert_eq!(store.queue_pop("name", true).unwrap(), "queued");
    assert_eq!(store.get("name").unwrap(), "kept");
}

fn a_pop_waits_for_a_push<S: Shared>(shared: &S) {
    if !S::HAS_QUEUES {
        return refuses_queues(shared);
    }
    let (one, other) = (shared.member(), shared.member());
    one.set_timeout(LONG);
    thread::scope(|scope| {
        let popping = scope.spawn(|| {
            one.set("about to pop", b"").unwrap();
            one.queue_pop("queue", true).unwrap()
        });
        other.wait(&["about to pop"], Some(LONG)).unwrap();
        other.queue_push("queue", b"value").unwrap();
        assert_eq!(popping.join().unwrap(), "value");
    });
    one.set_timeout(SHORT);
    let error = one.queue_pop("queue", true).unwrap_err();
    assert!(matches!(error, StoreError::WaitTimeout { .. }), "{error}");
}

fn every_value_is_popped_once<S: Shared>(shared: &S) {
    if !S::HAS_QUEUES {
        return refuses_queues(shared);
    }
    let mut popped: Vec<u8> = thread::scope(|scope| {
        let poppers: Vec<_> = (0..3)
            .map(|_| {
                let store = shared.member();
                scope.spawn(move || {
                    store.set_timeout(LONG);
                    (0..20)
                        .map(|_| store.queue_pop("queue", true).unwrap()[0])
                        .collect::<Vec<u8>>()
                })
            })
            .collect();
        for half in 0..2 {
            let store = shared.member();
            scope.spawn(move || {
                for number in 0..30 {
                    store.queue_push("queue", &[2 * number + half]).unwrap();
                }
            });
        }
        poppers
            .into_iter()
            .flat_map(|popper| popper.join().unwrap())
            .collect()
    });
    popped.sort_unstable();
    assert_eq!(popped, (0..60).collect::<Vec<u8>>());
}

fn a_store_without_queues_says_so<S: Shared>(shared: &S) {
    if S::HAS_QUEUES {
        return assert_eq!(shared.member().queue_len("queue").unwrap(), 0);
    }
    refuses_queues(shared);
}

fn refuses_queues<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set_timeout(Duration::ZERO);
    for error in [
        store.queue_push("queue", b"value").unwrap_err(),
        store.queue_pop("queue", true).unwrap_err(),
        store.queue_len("queue").unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    }
}
