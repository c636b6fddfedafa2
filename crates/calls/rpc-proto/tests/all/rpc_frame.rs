//! Tests of frames.
//!
//! Every written frame is read back, in pieces of any length, and hostile bytes cost little.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use rdzv_rpc_proto::frame::decoder::{AHEAD, FromHeap, SMALL, to_reserve};
use rdzv_rpc_proto::frame::header::HEADER_LENGTH;
use rdzv_rpc_proto::frame::part::SECTION_LENGTH;
use rdzv_rpc_proto::frame::{
    Decoder, Frame, FrameError, FrameKind, FrameLimits, Header, Part, PartHead, PartLocation,
    Supply, encode,
};

/// Returns the bytes of a frame on the wire.
fn written(frame: &Frame) -> Vec<u8> {
    let heads: Vec<_> = frame.parts.iter().map(head).collect();
    let mut wire = b"before".to_vec();
    encode(&frame.header, &frame.body, &heads, &mut wire);
    let mut wire = wire.split_off(6);
    for part in &frame.parts {
        if let Part::Here(bytes) = part {
            wire.extend_from_slice(bytes);
        }
    }
    wire
}

fn head(part: &Part) -> PartHead {
    match part {
        Part::Here(bytes) => PartHead::inline(bytes.len() as u64),
        Part::Elsewhere(head) => *head,
    }
}

/// Passes bytes to a decoder in pieces of `sizes`, and returns the frames.
fn read<S: Supply>(
    decoder: &mut Decoder<S>,
    mut wire: &[u8],
    sizes: &[usize],
) -> Result<Vec<Frame>, FrameError> {
    let mut frames = Vec::new();
    let mut sizes = sizes.iter().cycle();
    while !wire.is_empty() {
        let size = *sizes.next().expect("there is a size");
        let room = decoder.room();
        assert!(!room.is_empty());
        let count = size.min(room.len()).min(wire.len());
        room[..count].copy_from_slice(&wire[..count]);
        decoder.filled(count);
        wire = &wire[count..];
        while let Some(frame) = decoder.next()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn decoder() -> Decoder<FromHeap> {
    Decoder::new(FrameLimits::default(), FromHeap)
}

/// Lengths around the limit of the staging buffer, and beyond its size.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..200_usize,
        2 => SMALL - 2..SMALL + 2,
        1 => (64 << 10) - 200..(64 << 10) + 200_usize,
        1 => 100_000..300_000_usize,
    ]
}

fn content() -> impl Strategy<Value = Bytes> {
    (length(), any::<u8>()).prop_map(|(length, seed)| {
        let bytes: Vec<u8> = (0..length)
            .map(|at| (at as u8).wrapping_mul(31) ^ seed)
            .collect();
        bytes.into()
    })
}

fn part() -> impl Strategy<Value = Part> {
    let process = (any::<u64>(), 0..1000_u64).prop_map(|(address, length)| PartHead {
        location: PartLocation::Process { address },
        length,
    });
    let arena = (any::<u32>(), any::<u32>(), any::<u64>(), 0..1000_u64).prop_map(
        |(arena, generation, offset, length)| PartHead {
            location: PartLocation::Arena {
                arena,
                generation,
                offset,
            },
            length,
        },
    );
    prop_oneof![
        3 => content().prop_map(Part::Here),
        1 => process.prop_map(Part::Elsewhere),
        1 => arena.prop_map(Part::Elsewhere),
    ]
}

prop_compose! {
    fn header()(
        kind in proptest::sample::select(&FrameKind::ALL[..]),
        (flags, call, method) in any::<(u16, u64, u64)>(),
        (deadline_micros, trace, span) in any::<(u64, u128, u64)>(),
    ) -> Header {
        Header { kind, flags, call, method, deadline_micros, trace, span }
    }
}

prop_compose! {
    fn frame()(header in header(), body in content(), parts in vec(part(), 0..5)) -> Frame {
        Frame { header, body, parts }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn frames_are_read_as_they_were_written_however_they_are_cut(
        frames in vec(frame(), 1..6),
        sizes in vec(prop_oneof![1..100_usize, 1000..100_000_usize], 1..20),
    ) {
        let wire: Vec<u8> = frames.iter().flat_map(written).collect();
        let mut decoder = decoder();
        let read = read(&mut decoder, &wire, &sizes);
        prop_assert!(read == Ok(frames));
        prop_assert!(decoder.is_between_frames());
    }

    #[test]
    fn random_bytes_are_refused_or_waited_for(bytes in vec(any::<u8>(), 0..300)) {
        let read = read(&mut decoder(), &bytes, &[7]);
        let refused = matches!(read, Err(FrameError::Magic(_) | FrameError::Tls));
        prop_assert!(refused || bytes.len() < HEADER_LENGTH);
    }

    #[test]
    fn a_changed_byte_never_panics_and_never_reserves_beyond_the_limits(
        frame in frame(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut wire = written(&frame);
        let before = HEADER_LENGTH + frame.parts.len() * SECTION_LENGTH;
        wire[at.index(before)] = value;
        let limits = FrameLimits { body: 1 << 20, sections: 100, total: 2 << 20 };
        let ledger = Ledger::default();
        let mut decoder = Decoder::new(limits, ledger.clone());
        let read = read(&mut decoder, &wire, &[5000]);
        prop_assert!(ledger.largest() <= 2 << 20);
        // Frames that were decoded from the changed bytes can be written, and yield the same bytes.
        if let Ok(frames) = read {
            let again: Vec<u8> = frames.iter().flat_map(written).collect();
            prop_assert_eq!(&again[..], &wire[..again.len()]);
        }
    }
}

/// Memory from the allocator, with a record of each reservation.
#[derive(Debug, Clone, Default)]
struct Ledger {
    asked: Rc<RefCell<Vec<usize>>>,
}

impl Ledger {
    fn largest(&self) -> usize {
        self.asked.borrow().iter().copied().max().unwrap_or(0)
    }
}

impl Supply for Ledger {
    type Buffer = Vec<u8>;

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        let reserved = to_reserve(0, length);
        self.asked.borrow_mut().push(reserved);
        vec![0; reserved]
    }

    fn grow(&mut self, buffer: &mut Vec<u8>, length: usize) -> bool {
        let reserved = to_reserve(buffer.len(), length);
        self.asked.borrow_mut().push(reserved);
        buffer.resize(reserved, 0);
        true
    }

    fn freeze(&mut self, buffer: Vec<u8>) -> Bytes {
        buffer.into()
    }
}

fn request(body: &[u8], parts: &[PartHead]) -> Vec<u8> {
    let mut wire = Vec::new();
    encode(&Header::new(FrameKind::Request), body, parts, &mut wire);
    wire
}

#[test]
fn announcing_much_reserves_little_before_it_comes() {
    let ledger = Ledger::default();
    let mut decoder = Decoder::new(FrameLimits::default(), ledger.clone());
    let (first, second) = (20 << 20, 4_000_000_000);
    let parts = [PartHead::inline(first as u64), PartHead::inline(second)];
    let wire = request(b"body", &parts);
    let (last, wire) = wire.split_last().unwrap();
    assert_eq!(read(&mut decoder, wire, &[1]), Ok(vec![]));
    assert!(ledger.asked.borrow().is_empty());
    assert_eq!(read(&mut decoder, &[*last], &[1]), Ok(vec![]));
    assert_eq!(*ledger.asked.borrow(), [AHEAD]);
    // Each part is read directly into its final memory. The reserved memory is at most `AHEAD`, or
    // twice the received bytes.
    let mut received = 0;
    while received < first {
        assert_eq!(
            *ledger.asked.borrow().last().unwrap(),
            received + decoder.room().len()
        );
        assert!(decoder.room().len() <= received.max(AHEAD));
        let count = decoder.room().len().min(100_000);
        decoder.filled(count);
        received += count;
        assert_eq!(decoder.next(), Ok(None));
        assert!(!decoder.is_between_frames());
    }
    assert_eq!(received, first);
    assert_eq!(
        *ledger.asked.borrow().last().unwrap(),
        AHEAD,
        "the second part has begun"
    );
}

#[test]
fn a_long_body_is_reserved_as_it_comes() {
    let body = vec![7; 5 << 20];
    let wire = request(&body, &[]);
    let frames = read(&mut decoder(), &wire, &[300_000]).unwrap();
    assert_eq!(frames[0].body, body);
    let mut decoder = decoder();
    assert_eq!(
        read(&mut decoder, &wire[..HEADER_LENGTH], &[64]),
        Ok(vec![])
    );
    assert_eq!(decoder.room().len(), AHEAD);
}

/// Supply without memory.
struct Exhausted;

impl Supply for Exhausted {
    type Buffer = Vec<u8>;

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        vec![0; to_reserve(0, length)]
    }

    fn grow(&mut self, _: &mut Vec<u8>, _: usize) -> bool {
        false
    }

    fn freeze(&mut self, buffer: Vec<u8>) -> Bytes {
        buffer.into()
    }
}

#[test]
fn a_part_that_there_is_no_memory_for_ends_the_connection_and_not_the_process() {
    let mut decoder = Decoder::new(FrameLimits::default(), Exhausted);
    let mut wire = request(b"", &[PartHead::inline(1 << 30)]);
    wire.resize(wire.len() + 2 * AHEAD, 7);
    let error = read(&mut decoder, &wire, &[100_000]).unwrap_err();
    assert_eq!(error, FrameError::NoMemory(1 << 30));
    assert_eq!(decoder.next(), Err(error));
}

#[test]
fn limits_are_kept_before_anything_is_reserved() {
    let limits = FrameLimits {
        body: 100,
        sections: 3,
        total: 1 << 20,
    };
    let over_total = [PartHead::inline(1 << 19), PartHead::inline(u64::MAX)];
    let elsewhere = PartHead {
        location: PartLocation::Process { address: 0 },
        length: (1 << 20) + 1,
    };
    let cases: [(&[u8], &[PartHead], &str); 4] = [
        (
            &[0; 101],
            &[],
            "a body of 101 bytes exceeds the limit of 100",
        ),
        (
            &[],
            &[PartHead::inline(0); 4],
            "4 parts exceed the limit of 3",
        ),
        (
            &[],
            &over_total,
            "a message of at least 18446744073709551615 bytes exceeds the limit of 1048576",
        ),
        (
            &[],
            &[elsewhere],
            "a message of at least 1048577 bytes exceeds the limit of 1048576",
        ),
    ];
    for (body, parts, text) in cases {
        let ledger = Ledger::default();
        let mut decoder = Decoder::new(limits, ledger.clone());
        let error = read(&mut decoder, &request(body, parts), &[1]).unwrap_err();
        assert_eq!(error.to_string(), text);
        assert_eq!(limits.check(body.len(), parts), Err(error.clone()));
        assert_eq!(ledger.largest(), 0);
        // Later calls return the same error, whatever bytes arrive.
        let good = request(b"", &[]);
        assert_eq!(read(&mut decoder, &good, &[64]), Err(error));
    }
}

#[test]
fn an_unauthenticated_peer_may_say_little_and_a_known_peer_more() {
    let mut decoder = Decoder::new(FrameLimits::UNAUTHENTICATED, FromHeap);
    let wire = [request(b"hello", &[]), request(&[1; 5000], &[])].concat();
    decoder.room()[..wire.len()].copy_from_slice(&wire);
    decoder.filled(wire.len());
    assert_eq!(decoder.next().unwrap().unwrap().body, "hello");
    decoder.set_limits(FrameLimits::default());
    assert_eq!(decoder.next().unwrap().unwrap().body.len(), 5000);
    assert_eq!(decoder.next(), Ok(None));
}

#[test]
fn memory_for_sections_comes_with_the_sections() {
    // The header announces 65535 sections, and none arrives.
    let mut wire = request(b"", &[PartHead::inline(0); 1]);
    wire.truncate(HEADER_LENGTH);
    wire[60..62].copy_from_slice(&u16::MAX.to_le_bytes());
    let mut decoder = decoder();
    assert_eq!(read(&mut decoder, &wire, &[64]), Ok(vec![]));
    // All sections arrive, one by one.
    let section = &request(b"", &[PartHead::inline(0)])[HEADER_LENGTH..];
    let frames = read(&mut decoder, &section.repeat(65535), &[1000]).unwrap();
    assert_eq!(frames[0].parts.len(), 65535);
    assert!(
        frames[0]
            .parts
            .iter()
            .all(|part| *part == Part::Here(Bytes::new()))
    );
}

#[test]
fn a_small_part_does_not_keep_the_staging_buffer_and_a_body_does_not_copy() {
    let frame = Frame {
        header: Header::new(FrameKind::Reply),
        body: Bytes::from_static(b"a body"),
        parts: vec![Part::Here(Bytes::from_static(b"a part"))],
    };
    let wire = written(&frame);
    let mut decoder = decoder();
    decoder.room()[..wire.len()].copy_from_slice(&wire);
    let staging = decoder.room().as_ptr_range();
    decoder.filled(wire.len());
    let read = decoder.next().unwrap().unwrap();
    assert_eq!(read, frame);
    assert!(staging.contains(&read.body.as_ptr()));
    let Part::Here(part) = &read.parts[0] else {
        panic!("the part came with the frame");
    };
    assert!(!staging.contains(&part.as_ptr()));
}
