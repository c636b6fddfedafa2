use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use super::super::tests::filled;
use super::*;

fn pair() -> (Arc<Leases>, Arc<Leases>) {
    let (one, other) = UnixStream::pair().unwrap();
    let end = |stream: UnixStream| {
        stream.set_nonblocking(true).unwrap();
        Leases::new(stream.into())
    };
    (end(one), end(other))
}

/// Creates both ends, and a small arena of the first with these bytes.
fn pair_with(bytes: &[u8]) -> (Arc<Leases>, Arc<Leases>, Arena, Bytes) {
    let (owner, peer) = pair();
    let arena = Arena::new(8192).unwrap();
    let bytes = filled(&arena, bytes);
    (owner, peer, arena, bytes)
}

#[test]
fn bytes_are_leased_and_released() {
    let (owner, peer) = pair();
    let arena = Arena::new(1 << 20).unwrap();
    let bytes = filled(&arena, &[7; 100_000]);
    let part = bytes.slice(10..90_000);
    let first = owner.grant(&part).unwrap();
    let second = owner.grant(&part).unwrap();
    assert_eq!(first, second);
    let leased = peer.open(first, || {}).unwrap();
    assert_eq!(leased, part);
    assert_ne!(leased.as_ptr(), part.as_ptr(), "a separate mapping");
    drop((bytes, part));
    assert!(arena.free() < arena.capacity(), "two leases exist");
    assert!(owner.released(first.arena, first.generation));
    assert!(arena.free() < arena.capacity(), "one lease is left");
    assert!(owner.released(first.arena, first.generation));
    assert_eq!(arena.free(), arena.capacity());
    let again = owner.released(first.arena, first.generation);
    assert!(!again, "all leases were released");
    assert!(!owner.released(first.arena + 1, 0), "it was never passed");
}

#[test]
fn only_bytes_of_arenas_are_leased() {
    let (owner, _peer) = pair();
    assert_eq!(owner.grant(&Bytes::from_static(b"of the program")), None);
    assert_eq!(owner.grant(&Bytes::from(vec![1; 100_000])), None);
}

#[test]
fn each_arena_is_passed_once_in_each_direction() {
    let (one, other) = pair();
    let arenas = [(); 3].map(|()| Arena::new(4096).unwrap());
    let all = arenas.each_ref().map(|arena| filled(arena, b"of one"));
    for _ in 0..2 {
        for bytes in &all {
            for (owner, peer) in [(&one, &other), (&other, &one)] {
                let location = owner.grant(bytes).unwrap();
                assert_eq!(peer.open(location, || {}).unwrap(), bytes);
                assert!(owner.released(location.arena, location.generation));
            }
        }
    }
    assert_eq!((one.arenas(), other.arenas()), (3, 3));
    drop((all, arenas));
    assert!(!one.has_ended() && !other.has_ended());
    assert_eq!((one.arenas(), other.arenas()), (0, 0), "none is left");
}

#[test]
fn leases_outlive_the_connection_while_the_peer_holds_them() {
    let (owner, peer, arena, bytes) = pair_with(b"in use");
    let leased = peer.open(owner.grant(&bytes).unwrap(), || {}).unwrap();
    drop((bytes, owner));
    assert!(peer.has_ended());
    assert_eq!(arena.free(), 4096, "the peer still reads it");
    drop(peer);
    assert_eq!(arena.free(), 4096, "the peer still reads it");
    assert_eq!(leased, b"in use"[..]);
    drop(leased);
    assert_eq!(arena.free(), 8192);
}

#[test]
fn leases_to_a_peer_that_has_ended_are_over() {
    let (owner, peer, arena, bytes) = pair_with(b"lost");
    let _ = owner.grant(&bytes).unwrap();
    let _ = owner.grant(&bytes).unwrap();
    drop(bytes);
    // The peer has not even opened the bytes.
    drop(peer);
    assert!(owner.has_ended());
    assert_eq!(arena.free(), 4096);
    drop(owner);
    assert_eq!(arena.free(), 8192);
}

#[test]
fn after_the_end_nothing_is_leased_and_what_is_leased_stays() {
    let (owner, peer, arena, bytes) = pair_with(b"in use");
    let leased = peer.open(owner.grant(&bytes).unwrap(), || {}).unwrap();
    let location = owner.grant(&bytes).unwrap();
    owner.end();
    peer.end();
    assert!(peer.open(location, || {}).is_err());
    drop(bytes);
    assert_eq!(arena.free(), 4096);
    drop(leased);
    assert_eq!(arena.free(), 8192);
}

#[test]
fn what_is_leased_outlives_its_arena() {
    let (owner, peer, arena, bytes) = pair_with(b"still here");
    let location = owner.grant(&bytes).unwrap();
    let leased = peer.open(location, || {}).unwrap();
    drop((bytes, arena));
    assert!(!peer.has_ended());
    assert_eq!(peer.arenas(), 1);
    assert_eq!(leased, b"still here"[..]);
    assert!(owner.released(location.arena, location.generation));
    assert!(!peer.has_ended());
    assert_eq!(peer.arenas(), 0);
    assert_eq!(leased, b"still here"[..]);
    assert!(!owner.released(location.arena, location.generation));
}

#[test]
fn what_is_leased_is_found_although_its_owner_has_dropped_it() {
    let (owner, peer, arena, bytes) = pair_with(b"on its way");
    let location = owner.grant(&bytes).unwrap();
    drop((bytes, arena));
    let leased = peer.open(location, || {}).unwrap();
    assert_eq!(leased, b"on its way"[..]);
    drop(leased);
    assert!(owner.released(location.arena, location.generation));
    assert!(!peer.has_ended());
    assert_eq!(peer.arenas(), 0);
}

#[test]
fn what_cannot_be_mapped_is_an_error_and_is_released() {
    let (owner, peer) = pair();
    let file = std::fs::File::open("/dev/zero").unwrap();
    let message = message(PASSED, 7, 4096);
    let words = [IoSlice::new(&message)];
    pass::send(owner.socket(), &words, &[file.as_fd()]).unwrap();
    for (arena, why) in [(7, "another kind of file"), (8, "has not passed it")] {
        let location = Location {
            arena,
            generation: 0,
            offset: 0,
            length: 1,
        };
        let (released, received) = mpsc::channel();
        let error = peer.open(location, move || released.send(()).unwrap());
        assert!(error.unwrap_err().to_string().contains(why));
        received.recv().unwrap();
    }
    assert!(!peer.has_ended());
}

#[test]
fn words_that_make_no_sense_are_the_end() {
    for words in [&b"GET / HTTP/1.1\r\n"[..], b"RZA+four"] {
        let (owner, peer) = pair();
        pass::send(owner.socket(), &[IoSlice::new(words)], &[]).unwrap();
        assert!(peer.has_ended());
    }
}
