//! Tests with any bytes in any pieces.
//!
//! The machine never panics, and the pieces make no difference.

use proptest::collection::vec;
use proptest::prelude::*;
use rdzv_core::ident::ConnId;
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{CloseReason, Input};
use rdzv_store_proto::wire::{LARGE_BODY, request};

use crate::harness::Harness;

/// Returns small limits, so that random bytes reach them.
fn limits() -> Limits {
    Limits {
        max_key_bytes: 40,
        max_value_bytes: 3 * LARGE_BODY,
        max_keys_per_request: 20,
        max_unsent_bytes: 4 * LARGE_BODY,
        ..Limits::default()
    }
}

fn write(out: &mut Vec<u8>, (kind, key, length, number): (u8, u8, usize, i64)) {
    let key = [b'/', b'a' + key % 4];
    let other = [b'/', b'a' + (number as u8) % 4];
    let value = vec![b'0' + key[1] % 10; length];
    match kind {
        0 => request::set(out, &key, &value),
        1 => request::compare_set(out, &key, &vec![b'1'; number as usize % 3], &value),
        2 => request::get(out, &key),
        3 => request::add(out, &key, number),
        4 => request::check(out, &[key, other]),
        5 => request::wait(out, &[key, other]),
        6 => request::get_num_keys(out),
        7 => request::delete_key(out, &key),
        8 => request::append(out, &key, &value),
        9 => request::multi_get(out, &[key, other, key]),
        10 => request::multi_set(out, &[(key, &value[..]), (other, b"5")]),
        11 => request::cancel_wait(out),
        12 => request::ping(out, number as u32),
        13 => request::queue_push(out, &key, &value),
        14 => request::queue_pop(out, &key),
        15 => request::queue_len(out, &key),
        16 => request::list_keys(out),
        17 => request::barrier(out, &key, number),
        18 => request::get_when_there(out, &key),
        _ => out.push(kind),
    }
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![8 => 0..20_usize, 1 => LARGE_BODY - 1..2 * LARGE_BODY];
    let one = (0..20_u8, any::<u8>(), length, 0..5_i64);
    vec(one, 0..30).prop_map(|requests| {
        let mut out = Vec::new();
        for request in requests {
            // The values are digits, because `add` ends the connection at other texts.
            write(&mut out, request);
        }
        out
    })
}

/// Returns what a client receives that sends `bytes` in `pieces`.
/// If `direct`, large values are read directly into their own buffers.
fn observe(bytes: &[u8], pieces: &[usize], direct: bool) -> (Vec<u8>, Option<CloseReason>, usize) {
    let mut server = Harness::new(limits());
    let id = server.connect();
    let mut sizes = pieces.iter().copied().cycle();
    let mut rest = bytes;
    while !rest.is_empty() && !server.closed.contains_key(&id) {
        let size = sizes.next().unwrap_or(usize::MAX).clamp(1, rest.len());
        let landed = direct
            .then(|| land(&mut server, id, &rest[..size]))
            .flatten();
        match landed {
            Some(count) => rest = &rest[count..],
            None => {
                server.send(id, &rest[..size]);
                rest = &rest[size..];
            }
        }
    }
    let replies = server.take(id);
    let closed = server.closed.remove(&id);
    (replies, closed, server.machine.stats().keys)
}

fn land(server: &mut Harness, id: ConnId, bytes: &[u8]) -> Option<usize> {
    let space = server.machine.space(id)?;
    let count = bytes.len().min(space.capacity() - space.len());
    space.extend_from_slice(&bytes[..count]);
    server.handle(Input::Landed(id));
    Some(count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn requests_are_answered_alike_however_they_are_cut(
        requests in requests(),
        pieces in vec(prop_oneof![1..30_usize, 1..40_000_usize], 1..20),
        direct: bool,
    ) {
        let mut bytes = Vec::new();
        request::preamble(&mut bytes, 1);
        bytes.extend(requests);
        let whole = observe(&bytes, &[usize::MAX], false);
        prop_assert_eq!(observe(&bytes, &pieces, direct), whole);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_are_answered_alike_however_they_are_cut(
        garbage in vec(prop_oneof![3 => 0..20_u8, 1 => any::<u8>(), 4 => Just(0)], 0..300),
        pieces in vec(1..30_usize, 1..20),
        validated: bool,
    ) {
        let mut bytes = Vec::new();
        if validated {
            request::preamble(&mut bytes, 1);
        }
        bytes.extend(garbage);
        let (replies, closed, keys) = observe(&bytes, &[usize::MAX], false);
        let cut = observe(&bytes, &pieces, false);
        prop_assert_eq!((replies, keys), (cut.0, cut.2));
        // The reason shows as many of the first bytes as had arrived.
        prop_assert_eq!(closed.is_some(), cut.1.is_some());
    }
}
