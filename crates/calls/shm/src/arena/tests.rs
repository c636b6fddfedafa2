use std::sync::mpsc;
use std::thread;

use rustix::io::dup;

use super::peer::PeerArena;
use super::*;
use crate::error::ShmError;

fn opened(arena: &Arena) -> Arc<PeerArena> {
    let descriptor = dup(arena.descriptor()).unwrap();
    PeerArena::open(arena.id(), arena.capacity(), &descriptor, None).unwrap()
}

pub(super) fn filled(arena: &Arena, bytes: &[u8]) -> Bytes {
    let mut block = arena.allocate(bytes.len()).unwrap();
    block.as_mut().copy_from_slice(bytes);
    block.freeze()
}

#[test]
fn a_peer_reads_what_was_frozen_where_it_is() {
    let arena = Arena::new(1 << 20).unwrap();
    let theirs = opened(&arena);
    let bytes = filled(&arena, b"a tensor, say");
    let part = bytes.slice(2..8);
    let location = arena.pin(&part).unwrap();
    assert_eq!(location.length, 6);
    let leased = theirs.slice(location, || {}).unwrap();
    assert_eq!(leased, b"tensor"[..]);
    assert_ne!(leased.as_ptr(), part.as_ptr(), "a separate mapping");
}

#[test]
fn a_block_is_free_when_its_last_bytes_are_dropped() {
    let arena = Arena::new(8192).unwrap();
    let bytes = filled(&arena, &[1; 5000]);
    let part = bytes.slice(10..20);
    assert!(arena.allocate(1).is_none(), "there is no space left");
    drop(bytes);
    assert_eq!(arena.free(), 0);
    drop(part);
    assert_eq!(arena.free(), 8192);
    drop(arena.allocate(1).unwrap());
    assert_eq!(arena.free(), 8192);
}

#[test]
fn bytes_outlive_the_arena() {
    let arena = Arena::new(8192).unwrap();
    let theirs = opened(&arena);
    let bytes = filled(&arena, b"still here");
    let leased = theirs.slice(arena.pin(&bytes).unwrap(), || {}).unwrap();
    drop((arena, theirs));
    assert_eq!(bytes, leased);
    drop(bytes);
    assert_eq!(leased, b"still here"[..]);
}

#[test]
fn a_lease_is_released_once_by_the_last_clone_on_whichever_thread() {
    let arena = Arena::new(8192).unwrap();
    let theirs = opened(&arena);
    let bytes = filled(&arena, &[5; 100]);
    let (released, received) = mpsc::channel();
    let location = arena.pin(&bytes).unwrap();
    let leased = theirs
        .slice(location, move || released.send(location).unwrap())
        .unwrap();
    let clone = leased.slice(50..);
    drop(leased);
    assert!(received.try_recv().is_err(), "a clone is still in use");
    thread::spawn(move || drop(clone)).join().unwrap();
    assert_eq!(received.recv().unwrap(), location);
    assert!(received.recv().is_err(), "the lease was released twice");
}

#[test]
fn an_offset_outside_of_the_arena_is_refused_and_released() {
    let arena = Arena::new(8192).unwrap();
    let theirs = opened(&arena);
    let location = |arena, offset, length| Location {
        arena,
        offset,
        length,
        generation: 1,
    };
    let id = arena.id();
    let good = theirs.slice(location(id, 8000, 192), || {});
    assert_eq!(good.unwrap().len(), 192);
    for (arena, offset, length) in [
        (id, 8000, 193),
        (id, u64::MAX, 192),
        (id, 8000, u64::MAX),
        (id, 8193, 0),
        (id + 1, 8000, 192),
    ] {
        let bad = location(arena, offset, length);
        let (released, received) = mpsc::channel();
        let error = theirs.slice(bad, move || released.send(()).unwrap());
        assert!(matches!(error, Err(ShmError::Refused { .. })), "{bad:?}");
        received.recv().unwrap();
    }
}

#[test]
fn bytes_are_recognised_wherever_they_come_from() {
    let arena = Arena::new(8192).unwrap();
    let other = Arena::new(8192).unwrap();
    let bytes = filled(&arena, b"here");
    assert!(Arena::of(&Bytes::from_static(b"there")).is_none());
    assert!(Arena::of(&bytes.slice(1..1)).is_none());
    assert_eq!(Arena::of(&bytes.slice(1..)).unwrap().id(), arena.id());
    let others = filled(&other, &[1; 8192]);
    assert_eq!(Arena::of(&others.slice(8191..)).unwrap().id(), other.id());
    let id = arena.id();
    drop(arena);
    let kept = Arena::of(&bytes).unwrap();
    assert_eq!(kept.id(), id, "bytes keep their arena");
}
