//! Tests of the properties of stores in files.
//!
//! They cover other processes, torn records, locks and removal.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_store::{FileStore, Store, StoreError, interruptible};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(30);

fn new_path() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("store");
    (directory, path)
}

/// Returns a store in a new file, with its path.
fn opened() -> (TempDir, PathBuf, FileStore) {
    let (directory, path) = new_path();
    let store = FileStore::open(&path, None).unwrap();
    (directory, path, store)
}

/// Sets a key with another object on the file.
fn set(path: &PathBuf, key: &str) {
    FileStore::open(path, None).unwrap().set(key, b"").unwrap();
}

fn append(path: &PathBuf, bytes: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn a_torn_record_is_skipped_and_then_cut_off() {
    let (_directory, path, store) = opened();
    store.set("a", b"1").unwrap();
    let whole = fs::read(&path).unwrap();
    append(&path, b"\x02\0\0\0/b\x05\0\0\0cut");
    assert_eq!(store.get("a").unwrap(), "1");
    assert!(!store.check(&["b"]).unwrap());
    let late = FileStore::open(&path, None).unwrap();
    late.set("c", b"3").unwrap();
    assert_eq!(store.get("c").unwrap(), "3");
    assert!(fs::read(&path).unwrap().starts_with(&whole));
    assert!(!store.check(&["b"]).unwrap());
}

#[test]
fn a_record_that_arrives_in_pieces_is_read_when_it_is_whole() {
    let (_directory, path, store) = opened();
    for piece in [&b"\x02\0\0\0"[..], b"/k", b"\x05\0\0\0", b"value"] {
        assert!(!store.check(&["k"]).unwrap());
        append(&path, piece);
    }
    assert_eq!(store.get("k").unwrap(), "value");
}

#[test]
fn a_file_of_something_else_is_left_alone() {
    let (_directory, path) = new_path();
    for content in [&b"#!/bin/sh\nexit 0\n"[..], b"vm\n", b"\x7fELF\x02\x01"] {
        fs::write(&path, content).unwrap();
        let error = FileStore::open(&path, Some(1)).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

#[test]
fn an_empty_file_becomes_a_store() {
    let (_directory, path) = new_path();
    fs::write(&path, b"").unwrap();
    FileStore::open(&path, None)
        .unwrap()
        .set("k", b"v")
        .unwrap();
    assert_eq!(FileStore::open(&path, None).unwrap().get("k").unwrap(), "v");
}

#[test]
fn a_missing_directory_is_an_error_at_once() {
    let (directory, _) = new_path();
    let path = directory.path().join("missing/store");
    let started = Instant::now();
    let error = FileStore::open(&path, None).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5));
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(text.contains("No such file or directory"), "{text}");
}

#[test]
fn a_lock_that_is_not_given_back_is_named() {
    let (_directory, path, store) = opened();
    store.set_timeout(Duration::from_millis(50));
    let holder = File::open(&path).unwrap();
    holder.lock().unwrap();
    let error = store.set("k", b"v").unwrap_err().to_string();
    assert!(error.contains("lock the store file"), "{error}");
    assert!(error.contains("held the file's lock"), "{error}");
    store.set_timeout(Duration::from_secs(60));
    let error = interruptible(|| true, || store.set("k", b"v")).unwrap_err();
    assert!(matches!(error, StoreError::Interrupted { .. }), "{error}");
    holder.unlock().unwrap();
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), "v");
}

#[test]
fn waiting_for_the_lock_ends_when_it_is_free() {
    let (_directory, path, store) = opened();
    let holder = File::open(&path).unwrap();
    holder.lock().unwrap();
    thread::scope(|scope| {
        let (about_to_set, is_about_to_set) = mpsc::channel();
        let store = &store;
        let setting = scope.spawn(move || {
            about_to_set.send(()).unwrap();
            store.set("k", b"v")
        });
        is_about_to_set.recv().unwrap();
        assert!(!setting.is_finished());
        holder.unlock().unwrap();
        setting.join().unwrap().unwrap();
    });
}

#[test]
fn the_file_goes_with_the_last_of_its_world() {
    let (_directory, path) = new_path();
    let first = FileStore::open(&path, Some(2)).unwrap();
    let clone = first.try_clone().unwrap();
    let second = FileStore::open(&path, Some(2)).unwrap();
    drop(first);
    drop(second);
    assert!(path.exists(), "a clone is still open");
    drop(clone);
    assert!(!path.exists());
}

#[test]
fn without_a_world_size_the_file_stays() {
    let (_directory, path) = new_path();
    drop(FileStore::open(&path, None).unwrap());
    assert!(path.exists());
}

#[test]
fn a_file_that_is_gone_is_not_made_again_by_closing() {
    let (_directory, path) = new_path();
    let store = FileStore::open(&path, Some(1)).unwrap();
    fs::remove_file(&path).unwrap();
    drop(store);
    assert!(!path.exists());
}

#[test]
fn a_replaced_file_is_read_afresh() {
    let (_directory, path, store) = opened();
    store.set("old", b"").unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!store.check(&["old"]).unwrap());
    assert_eq!(store.num_keys().unwrap(), 0);
    set(&path, "new");
    assert!(store.check(&["new"]).unwrap());
    assert!(!store.check(&["old"]).unwrap());
}

#[test]
fn a_waiter_notices_that_the_file_was_replaced() {
    let (_directory, path, store) = opened();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait(&["new"], Some(LONG)));
        fs::remove_file(&path).unwrap();
        set(&path, "new");
        waiting.join().unwrap().unwrap();
    });
}

/// The member that happens to be the last one removes the file.
/// No member may lose its own data because another member removes the file.
#[test]
fn members_that_come_and_go_do_not_remove_each_others_file() {
    let (_directory, path) = new_path();
    thread::scope(|scope| {
        for member in 0..4 {
            let path = &path;
            scope.spawn(move || {
                for round in 0..50 {
                    let store = FileStore::open(path, Some(1)).unwrap();
                    let key = format!("{member} {round}");
                    store.set(&key, b"mine").unwrap();
                    assert!(store.check(&[&key]).unwrap(), "{key}");
                }
            });
        }
    });
    assert!(!path.exists());
}

#[test]
fn one_object_serves_many_threads() {
    let (_directory, _path, store) = opened();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    store.add("n", 1).unwrap();
                }
            });
        }
        scope.spawn(|| store.wait(&["n"], Some(LONG)).unwrap());
    });
    assert_eq!(store.get("n").unwrap(), "100");
}

#[test]
fn a_value_that_is_no_number_is_shown() {
    let (_directory, _path, store) = opened();
    store.set("k", b"apples").unwrap();
    let error = store.add("k", 1).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot add to key k: its value \"apples\" is not a number"
    );
}

#[test]
fn a_change_of_a_value_is_noticed() {
    let (_directory, path, store) = opened();
    store.set("k", b"old").unwrap();
    let short = Duration::from_millis(50);
    let error = store.wait_for_change("k", Some(b"old"), short).unwrap_err();
    assert!(matches!(error, StoreError::WaitTimeout { .. }), "{error}");
    thread::scope(|scope| {
        let wait = scope.spawn(|| store.wait_for_change("k", Some(b"old"), LONG).unwrap());
        let other = FileStore::open(&path, None).unwrap();
        other.set("else", b"x").unwrap();
        other.set("k", b"new").unwrap();
        assert_eq!(wait.join().unwrap().unwrap(), "new");
    });
    store.delete_key("k").unwrap();
    let gone = store.wait_for_change("k", Some(b"new"), LONG).unwrap();
    assert_eq!(gone, None);
}

#[test]
fn a_path_that_is_no_regular_file_is_named_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, kind) in [
        (
            std::path::Path::new("/dev/null"),
            "not a regular file, but a device",
        ),
        (&socket, "not a regular file, but a socket"),
        (directory.path(), "Is a directory"),
    ] {
        let error = FileStore::open(path, None).unwrap_err().to_string();
        assert!(error.contains(kind), "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}
