use std::os::unix::net::UnixStream;

use std::sync::mpsc;

use super::*;

fn filled(arena: &Arena, bytes: &[u8]) -> Bytes {
    let mut block = arena.allocate(bytes.len()).unwrap();
    block.as_mut().copy_from_slice(bytes);
    block.freeze()
}

fn pair() -> (Arc<Exchange>, Arc<Exchange>) {
    let (one, other) = UnixStream::pair().unwrap();
    let end = |stream: UnixStream| {
        stream.set_nonblocking(true).unwrap();
        Exchange::new(stream.into())
    };
    (end(one), end(other))
}

#[test]
fn bytes_are_lent_and_returned() {
    let (owner, borrower) = pair();
    let arena = Arena::new(1 << 20).unwrap();
    let bytes = filled(&arena, &[7; 100_000]);
    let part = bytes.slice(10..90_000);
    let first = owner.lend(&part).unwrap();
    let second = owner.lend(&part).unwrap();
    assert_eq!(first, second);
    let lent = borrower.borrow(first, || {}).unwrap();
    assert_eq!(lent, part);
    assert_ne!(lent.as_ptr(), part.as_ptr(), "it is a mapping of its own");
    drop((bytes, part));
    assert!(arena.free() < arena.capacity(), "it is lent twice");
    assert!(owner.returned(first.arena, first.generation));
    assert!(arena.free() < arena.capacity(), "it is lent once more");
    assert!(owner.returned(first.arena, first.generation));
    assert_eq!(arena.free(), arena.capacity());
    assert!(
        !owner.returned(first.arena, first.generation),
        "all are back"
    );
    assert!(!owner.returned(first.arena + 1, 0), "it was never passed");
}

#[test]
fn only_bytes_of_arenas_are_lent() {
    let (owner, _borrower) = pair();
    assert_eq!(owner.lend(&Bytes::from_static(b"of the program")), None);
    assert_eq!(owner.lend(&Bytes::from(vec![1; 100_000])), None);
}

#[test]
fn each_arena_is_passed_once_in_each_direction() {
    let (one, other) = pair();
    let arenas = [(); 3].map(|()| Arena::new(4096).unwrap());
    let all = arenas.each_ref().map(|arena| filled(arena, b"of one"));
    for _ in 0..2 {
        for bytes in &all {
            for (owner, borrower) in [(&one, &other), (&other, &one)] {
                let location = owner.lend(bytes).unwrap();
                assert_eq!(borrower.borrow(location, || {}).unwrap(), bytes);
                assert!(owner.returned(location.arena, location.generation));
            }
        }
    }
    assert_eq!((one.arenas(), other.arenas()), (3, 3));
    drop((all, arenas));
    assert!(!one.has_ended() && !other.has_ended());
    assert_eq!((one.arenas(), other.arenas()), (0, 0), "they are gone");
}

#[test]
fn loans_outlive_the_connection_until_the_borrower_lets_go() {
    let (owner, borrower) = pair();
    let arena = Arena::new(8192).unwrap();
    let bytes = filled(&arena, b"in use");
    let lent = borrower.borrow(owner.lend(&bytes).unwrap(), || {}).unwrap();
    drop((bytes, owner));
    assert!(borrower.has_ended());
    assert_eq!(arena.free(), 4096, "the borrower reads it still");
    drop(borrower);
    assert_eq!(arena.free(), 4096, "the borrower reads it still");
    assert_eq!(lent, b"in use"[..]);
    drop(lent);
    assert_eq!(arena.free(), 8192);
}

#[test]
fn loans_to_a_peer_that_has_ended_are_over() {
    let (owner, borrower) = pair();
    let arena = Arena::new(8192).unwrap();
    let bytes = filled(&arena, b"lost");
    let _ = owner.lend(&bytes).unwrap();
    let _ = owner.lend(&bytes).unwrap();
    drop(bytes);
    // It has not even looked at it.
    drop(borrower);
    assert!(owner.has_ended());
    assert_eq!(arena.free(), 4096);
    drop(owner);
    assert_eq!(arena.free(), 8192);
}

#[test]
fn after_the_end_nothing_is_lent_and_what_is_lent_stays() {
    let (owner, borrower) = pair();
    let arena = Arena::new(8192).unwrap();
    let bytes = filled(&arena, b"in use");
    let lent = borrower.borrow(owner.lend(&bytes).unwrap(), || {}).unwrap();
    let location = owner.lend(&bytes).unwrap();
    owner.end();
    borrower.end();
    assert!(borrower.borrow(location, || {}).is_err());
    drop(bytes);
    assert_eq!(arena.free(), 4096);
    drop(lent);
    assert_eq!(arena.free(), 8192);
}

#[test]
fn what_is_lent_outlives_its_arena() {
    let (owner, borrower) = pair();
    let arena = Arena::new(8192).unwrap();
    let bytes = filled(&arena, b"still here");
    let location = owner.lend(&bytes).unwrap();
    let lent = borrower.borrow(location, || {}).unwrap();
    drop((bytes, arena));
    assert!(!borrower.has_ended());
    assert_eq!(borrower.arenas(), 1);
    assert_eq!(lent, b"still here"[..]);
    assert!(owner.returned(location.arena, location.generation));
    assert!(!borrower.has_ended());
    assert_eq!(borrower.arenas(), 0);
    assert_eq!(lent, b"still here"[..]);
    assert!(!owner.returned(location.arena, location.generation));
}

#[test]
fn what_is_lent_is_found_although_its_owner_has_dropped_it() {
    let (owner, borrower) = pair();
    let arena = Arena::new(8192).unwrap();
    let bytes = filled(&arena, b"on its way");
    let location = owner.lend(&bytes).unwrap();
    drop((bytes, arena));
    let lent = borrower.borrow(location, || {}).unwrap();
    assert_eq!(lent, b"on its way"[..]);
    drop(lent);
    assert!(owner.returned(location.arena, location.generation));
    assert!(!borrower.has_ended());
    assert_eq!(borrower.arenas(), 0);
}

#[test]
fn what_cannot_be_mapped_is_an_error_and_is_returned() {
    let (owner, borrower) = pair();
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
        let (returned, heard) = mpsc::channel();
        let error = borrower.borrow(location, move || returned.send(()).unwrap());
        assert!(error.unwrap_err().to_string().contains(why));
        heard.recv().unwrap();
    }
    assert!(!borrower.has_ended());
}

#[test]
fn words_that_make_no_sense_are_the_end() {
    for words in [&b"GET / HTTP/1.1\r\n"[..], b"RZA+four"] {
        let (owner, borrower) = pair();
        pass::send(owner.socket(), &[IoSlice::new(words)], &[]).unwrap();
        assert!(borrower.has_ended());
    }
}
