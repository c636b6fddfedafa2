//! Pickles that no agent writes.

use rdzv_pickle::decode::{MAX_LENGTH, MOST_ITEMS};
use rdzv_pickle::{PickleError, Problem, opcode};
use rdzv_rendezvous_proto::codec::{CodecError, decode, encode};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState};

fn text(text: &str) -> Vec<u8> {
    let mut bytes = vec![opcode::SHORT_BINUNICODE, text.len() as u8];
    bytes.extend(text.as_bytes());
    bytes
}

fn pickle(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![opcode::PROTO, 4];
    bytes.extend(parts.concat());
    bytes.push(opcode::STOP);
    bytes
}

fn named(module: &str, name: &str) -> Vec<u8> {
    [text(module), text(name), vec![opcode::STACK_GLOBAL]].concat()
}

fn problem(bytes: &[u8]) -> (usize, Problem) {
    match decode(bytes).unwrap_err() {
        CodecError::Pickle(PickleError { at, problem }) => (at, problem),
        other => panic!("{other}"),
    }
}

/// Returns an empty state with a further attribute.
///
/// `item` leaves the value of the attribute on the stack.
fn with_attribute(item: &[u8]) -> Vec<u8> {
    let empty = encode(&RendezvousState::default());
    let set_items = empty.len() - 3;
    assert_eq!(
        empty[set_items..],
        [opcode::SETITEMS, opcode::BUILD, opcode::STOP]
    );
    // The length of the frame would be wrong now, so it is left out.
    let (frame, rest) = empty[2..set_items].split_at(9);
    assert_eq!(frame[0], opcode::FRAME);
    let tail = [opcode::SETITEMS, opcode::BUILD];
    pickle(&[rest, &text("later"), item, &tail])
}

#[test]
fn a_forbidden_class_is_named_in_the_error() {
    let bytes = pickle(&[
        &named("posix", "system"),
        &text("true"),
        &[opcode::TUPLE1, opcode::REDUCE],
    ]);
    let (at, found) = problem(&bytes);
    assert_eq!(at, 2 + 7 + 8);
    let forbidden = |module: &str, name: &str| Problem::Forbidden {
        module: module.to_owned(),
        name: name.to_owned(),
    };
    assert_eq!(found, forbidden("posix", "system"));
    let shown = decode(&bytes).unwrap_err().to_string();
    assert!(shown.contains(r#""posix"."system""#), "{shown}");

    // An older opcode with the same meaning.
    let older = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.";
    assert_eq!(problem(older), (2, forbidden("posix", "system")));

    let long = "x".repeat(200);
    assert_eq!(
        problem(&pickle(&[&named(&long, "y")])).1,
        forbidden(&long[..100], "y")
    );
}

#[test]
fn instructions_that_no_state_has_are_refused() {
    // GLOBAL, INST, OBJ, EXT1, PERSID, BINPERSID, NEWOBJ_EX, NEXT_BUFFER, POP, DUP, BINPUT, INT
    for instruction in *b"cio\x82PQ\x92\x970\x32qI" {
        let bytes = pickle(&[&[instruction]]);
        assert_eq!(problem(&bytes), (2, Problem::Opcode(instruction)));
    }
}

#[test]
fn classes_are_made_in_their_own_way_only() {
    let state = named(
        "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
        "_RendezvousState",
    );
    let time = named("datetime", "datetime");
    let zone = named("datetime", "timezone");
    let span = named("datetime", "timedelta");
    let make = [opcode::EMPTY_TUPLE, opcode::NEWOBJ];
    let call = [opcode::EMPTY_TUPLE, opcode::REDUCE];
    let days = |count: i32| {
        let day = [&[opcode::BININT][..], &count.to_le_bytes()].concat();
        let zero = [opcode::BININT1, 0];
        [&day, &zero[..], &zero, &[opcode::TUPLE3, opcode::REDUCE]].concat()
    };
    let with_none = [opcode::NONE, opcode::TUPLE1, opcode::NEWOBJ];
    for parts in [
        &[&state[..], &call][..],
        &[&state, &with_none],
        &[&time, &make],
        &[&time, &call],
        &[&time, b"C\x03abc\x85R"],
        &[&time, b"C\x0a\x07\xea\x0d\x01\x00\x00\x00\x00\x00\x00\x85R"],
        &[&zone, &call],
        &[&zone, &span, &days(1), &[opcode::TUPLE1, opcode::REDUCE]],
        &[&span, &days(1_000_000_000)],
        &[&text("datetime"), &call],
        &[b"KaKb\x93"],
    ] {
        let (_, found) = problem(&pickle(parts));
        assert!(matches!(found, Problem::Expected { .. }), "{found:?}");
    }
}

#[test]
fn nothing_is_taken_from_below_a_mark_or_from_nothing() {
    for bytes in [
        &b"\x94"[..],
        b".",
        b"s",
        b"u",
        b"}(Ku",
        b"}(NNNu",
        b"N(a",
        b"](0",
        b"N(\x85",
        b"N\x86",
        b"e",
        b"t",
        b"\x93",
        b"b",
        b"R",
        b"h\x00",
        b"Nj\xff\xff\xff\xff",
    ] {
        assert!(decode(&pickle(&[bytes])).is_err(), "{bytes:02x?}");
    }
}

#[test]
fn a_length_beyond_the_end_is_refused() {
    for bytes in [
        &b"\x8c\xffabc"[..],
        b"X\xff\xff\xff\xffabc",
        b"C\xffabc",
        b"B\xff\xff\xff\xffabc",
        b"\x8a\x20abc",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff",
        b"",
        b"\x80",
        b"K",
    ] {
        let bytes = [b"\x80\x04", bytes].concat();
        assert_eq!(problem(&bytes), (2, Problem::CutShort));
    }
    assert_eq!(problem(b"\x80\x06N.").1, Problem::Protocol(6));
    assert_eq!(problem(b"\x80\x04\x8c\x02\xc3\x28.").1, Problem::NotText);
}

#[test]
fn a_state_in_which_something_is_missing_or_wrong_says_what() {
    assert_eq!(
        decode(&pickle(&[b"}"])).unwrap_err().to_string(),
        "in the rendezvous state, root is a dict instead of a rendezvous state"
    );
    let whole = encode(&RendezvousState::default());
    let renamed = |from: &str, to: &str| {
        let mut bytes = whole.clone();
        let at = bytes
            .windows(from.len())
            .position(|window| window == from.as_bytes());
        bytes[at.unwrap()..][..to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    assert_eq!(
        decode(&renamed("closed", "cloSed"))
            .unwrap_err()
            .to_string(),
        "in the rendezvous state, state has no closed"
    );
    // The round consumes bytes of the next attribute.
    let mut bytes = whole.clone();
    let round = bytes
        .windows(5)
        .position(|window| window == b"round")
        .unwrap();
    bytes[round + 6] = opcode::BININT;
    assert!(decode(&bytes).is_err());
}

#[test]
fn an_unknown_attribute_is_ignored_however_far_it_unfolds() {
    // Each tuple contains the previous one twice, so the size is 2 to the power of the depth.
    let mut bomb = vec![opcode::EMPTY_TUPLE, opcode::MEMOIZE];
    let start = 17;
    for level in 0..25 {
        bomb.extend([
            opcode::BINGET,
            start + level,
            opcode::TUPLE2,
            opcode::MEMOIZE,
        ]);
    }
    // A list that contains itself.
    let list = [
        opcode::EMPTY_LIST,
        opcode::MEMOIZE,
        opcode::BINGET,
        start,
        opcode::APPEND,
    ];
    let deep = [vec![opcode::NONE], vec![opcode::TUPLE1; 1000]].concat();
    for attribute in [&[opcode::NONE][..], &bomb, &list, &deep] {
        let read = decode(&with_attribute(attribute));
        assert_eq!(read, Ok(RendezvousState::default()));
    }
}

#[test]
fn a_long_address_that_many_items_share_is_refused() {
    let node = NodeDesc::new("x".repeat(4000), 1);
    let state = RendezvousState {
        wait_list: [node].into(),
        ..RendezvousState::default()
    };
    let bytes = encode(&state);
    let (head, rest) = bytes[2..].split_at(9);
    assert_eq!(head[0], opcode::FRAME);
    // The node is the item that was remembered last before its address.
    let new = [opcode::EMPTY_TUPLE, opcode::NEWOBJ, opcode::MEMOIZE];
    let at = rest.windows(3).rposition(|it| *it == new).unwrap() + new.len();
    let remembered = rest[..at].iter().filter(|byte| **byte == opcode::MEMOIZE);
    let again = [opcode::BINGET, (remembered.count() - 1) as u8].repeat(2000);
    let end = rest.iter().position(|byte| *byte == opcode::ADDITEMS);
    let (front, back) = rest.split_at(end.unwrap());
    let back = back.strip_suffix(&[opcode::STOP]).unwrap();
    let found = decode(&pickle(&[front, &again, back])).unwrap_err();
    assert!(matches!(found, CodecError::Unfolds { .. }), "{found}");
}

#[test]
fn what_is_too_large_is_refused() {
    let one_too_many = MOST_ITEMS + 1;
    for instruction in [opcode::NONE, opcode::MARK, opcode::EMPTY_DICT] {
        let found = problem(&pickle(&[&vec![instruction; one_too_many]])).1;
        assert!(matches!(found, Problem::TooMuch { .. }), "{found:?}");
    }
    let remembered = [vec![opcode::NONE], vec![opcode::MEMOIZE; one_too_many]].concat();
    assert!(matches!(
        problem(&pickle(&[&remembered])).1,
        Problem::TooMuch { .. }
    ));
    // The stack stays small, but the list grows.
    let appended = [
        vec![opcode::EMPTY_LIST],
        [opcode::NONE, opcode::APPEND].repeat(one_too_many),
    ];
    assert!(matches!(
        problem(&pickle(&[&appended.concat()])).1,
        Problem::TooMuch { .. }
    ));

    let long = vec![opcode::NONE; MAX_LENGTH + 1];
    assert!(matches!(problem(&long), (0, Problem::TooMuch { .. })));
}
