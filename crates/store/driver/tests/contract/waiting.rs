//! Tests of waiting, waking and interrupting.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_store::{Store, StoreError};

use crate::stores::Shared;
use crate::{LONG, SHORT};

crate::behaviours!(waiting:
    what_is_there_is_not_waited_for,
    every_kind_of_write_wakes,
    a_wait_wants_all_its_keys,
    get_waits_for_the_value,
    many_waiters_wake_together,
    a_timeout_names_what_was_missing,
    a_timeout_of_zero_looks_once,
    a_wait_without_end_ends_with_its_key,
    a_deleted_key_is_waited_for,
    a_barrier_lets_all_go_together,
    a_barrier_alone_names_who_came,
    a_member_that_stopped_waiting_at_a_barrier_is_not_counted,
    another_thread_can_write_while_one_waits,
    get_has_a_timeout_of_its_own,
    a_thread_can_end_its_own_wait,
);

/// Checks that `act` on one member wakes another member.
/// The other member is about to wait for `keys`.
fn wakes<S: Shared>(shared: &S, keys: &[&str], act: impl FnOnce(&dyn Store)) {
    let (waiter, actor) = (shared.member(), shared.member());
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            ready.send(()).unwrap();
            waiter.wait(keys, Some(LONG))
        });
        is_ready.recv().unwrap();
        act(&*actor);
        waiting.join().unwrap().unwrap();
    });
}

fn get_has_a_timeout_of_its_own<S: Shared>(shared: &S) {
    let store = shared.member();
    let error = store.get_within("later", Some(SHORT)).unwrap_err();
    assert!(matches!(error, StoreError::WaitTimeout { .. }), "{error}");
    store.set("later", b"here").unwrap();
    assert_eq!(store.get_within("later", Some(LONG)).unwrap(), &b"here"[..]);
}

fn a_thread_can_end_its_own_wait<S: Shared>(shared: &S) {
    let store = shared.member();
    let started = Instant::now();
    let waits: [&dyn Fn() -> Result<(), StoreError>; 3] = [
        &|| store.wait(&["never"], None),
        &|| store.get("never").map(drop),
        &|| store.barrier("gate", 2, None),
    ];
    for wait in waits {
        let error = rdzv_store::interruptible(|| true, wait).unwrap_err();
        assert!(matches!(error, StoreError::Interrupted { .. }), "{error}");
    }
    assert!(started.elapsed() < LONG);
    // The interrupted calls leave nothing behind, and without a check no call is interrupted.
    store.set("never", b"now").unwrap();
    assert_eq!(store.get("never").unwrap(), &b"now"[..]);
}

fn what_is_there_is_not_waited_for<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set("a", b"").unwrap();
    store.set("b", b"").unwrap();
    store.wait(&["a", "b", "a"], Some(LONG)).unwrap();
    store.wait(&[], Some(LONG)).unwrap();
}

fn every_kind_of_write_wakes<S: Shared>(shared: &S) {
    wakes(shared, &["set"], |store| store.set("set", b"v").unwrap());
    wakes(shared, &["add"], |store| {
        store.add("add", 0).unwrap();
    });
    wakes(shared, &["append"], |store| {
        store.append("append", b"v").unwrap();
    });
    wakes(shared, &["compare_set"], |store| {
        store.compare_set("compare_set", b"", b"v").unwrap();
    });
    wakes(shared, &["m1", "m2"], |store| {
        store.multi_set(&[("m1", b"1"), ("m2", b"2")]).unwrap();
    });
}

fn a_wait_wants_all_its_keys<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set("first", b"").unwrap();
    let error = store.wait(&["first", "second"], Some(SHORT)).unwrap_err();
    assert!(matches!(error, StoreError::WaitTimeout { .. }), "{error}");
    wakes(shared, &["first", "second", "third", "second"], |store| {
        store.set("third", b"").unwrap();
        store.set("second", b"").unwrap();
    });
}

fn get_waits_for_the_value<S: Shared>(shared: &S) {
    let (one, other) = (shared.member(), shared.member());
    thread::scope(|scope| {
        let getting = scope.spawn(|| {
            one.set("about to get", b"").unwrap();
            one.multi_get(&["late", "late"]).unwrap();
            one.get("later").unwrap()
        });
        other.wait(&["about to get"], Some(LONG)).unwrap();
        other.set("late", b"").unwrap();
        other.set("later", b"value").unwrap();
        assert_eq!(getting.join().unwrap(), "value");
    });
}

fn many_waiters_wake_together<S: Shared>(shared: &S) {
    let setter = shared.member();
    thread::scope(|scope| {
        for _ in 0..8 {
            let store = shared.member();
            scope.spawn(move || {
                store.add("waiting", 1).unwrap();
                store.wait(&["go"], Some(LONG)).unwrap();
                store.add("woken", 1).unwrap();
            });
        }
        while setter.add("waiting", 0).unwrap() < 8 {
            thread::yield_now();
        }
        setter.set("go", b"").unwrap();
    });
    assert_eq!(setter.add("woken", 0).unwrap(), 8);
}

fn a_timeout_names_what_was_missing<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set("here", b"").unwrap();
    let started = Instant::now();
    let error = store.wait(&["here", "gone"], Some(SHORT)).unwrap_err();
    assert!(started.elapsed() >= SHORT);
    let StoreError::WaitTimeout {
        keys,
        missing,
        elapsed,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(*elapsed >= SHORT, "{elapsed:?}");
    assert_eq!(keys.len(), 2);
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert!(missing[0].ends_with("gone"), "{missing:?}");
    store.set("gone", b"").unwrap();
    store.wait(&["here", "gone"], Some(SHORT)).unwrap();
}

fn a_timeout_of_zero_looks_once<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set("here", b"").unwrap();
    store.wait(&["here"], Some(Duration::ZERO)).unwrap();
    let error = store.wait(&["gone"], Some(Duration::ZERO)).unwrap_err();
    assert!(matches!(error, StoreError::WaitTimeout { .. }), "{error}");
}

fn a_wait_without_end_ends_with_its_key<S: Shared>(shared: &S) {
    let (one, other) = (shared.member(), shared.member());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            one.set("about to wait", b"").unwrap();
            one.wait(&["key"], Some(Duration::MAX))
        });
        other.wait(&["about to wait"], None).unwrap();
        other.set("key", b"").unwrap();
        waiting.join().unwrap().unwrap();
    });
}

fn a_deleted_key_is_waited_for<S: Shared>(shared: &S) {
    let store = shared.member();
    store.set("key", b"").unwrap();
    store.delete_key("key").unwrap();
    store.wait(&["key"], Some(SHORT)).unwrap_err();
    wakes(shared, &["key"], |store| {
        store.delete_key("key").unwrap();
        store.set("key", b"").unwrap();
    });
}

fn a_barrier_lets_all_go_together<S: Shared>(shared: &S) {
    thread::scope(|scope| {
        for _ in 0..4 {
            let store = shared.member();
            scope.spawn(move || {
                store.add("arrived", 1).unwrap();
                store.barrier("barrier", 4, Some(LONG)).unwrap();
                assert_eq!(store.add("arrived", 0).unwrap(), 4);
            });
        }
    });
    let late = shared.member();
    late.barrier("barrier", 4, Some(Duration::ZERO)).unwrap();
    late.barrier("empty", 0, Some(Duration::ZERO)).unwrap();
}

fn a_barrier_alone_names_who_came<S: Shared>(shared: &S) {
    let store = shared.member();
    let error = store.barrier("barrier", 2, Some(SHORT)).unwrap_err();
    let StoreError::BarrierTimeout {
        arrived,
        world_size,
        key,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*arrived, *world_size), (1, 2));
    assert!(key.contains("barrier"), "{key}");
}

fn a_member_that_stopped_waiting_at_a_barrier_is_not_counted<S: Shared>(shared: &S) {
    let store = shared.member();
    for _ in 0..2 {
        let error = store.barrier("barrier", 2, Some(SHORT)).unwrap_err();
        assert!(
            matches!(error, StoreError::BarrierTimeout { arrived: 1, .. }),
            "{error}"
        );
    }
    thread::scope(|scope| {
        let other = shared.member();
        let waiting = scope.spawn(move || other.barrier("barrier", 2, Some(LONG)));
        store.barrier("barrier", 2, Some(LONG)).unwrap();
        waiting.join().unwrap().unwrap();
    });
}

fn another_thread_can_write_while_one_waits<S: Shared>(shared: &S) {
    let waiter = shared.member();
    let writer = waiter.try_clone().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.get("key").unwrap());
        writer.set("key", b"value").unwrap();
        assert_eq!(waiting.join().unwrap(), "value");
    });
}
