//! Hostile bytes at the decoder of frames.
//!
//! The decoder does not panic, uses bounded memory, and reads the same frames for any cuts. Frames
//! that were read can be written, and are the same bytes then.
//!
//! The first four bytes of the input choose the cuts; the rest is what a peer sends.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use rdzv_rpc_proto::frame::decoder::to_reserve;
use rdzv_rpc_proto::frame::{Decoder, Frame, FrameError, Limits, Part, PartHead, Supply, encode};

const LIMITS: Limits = Limits {
    body: 1 << 20,
    sections: 200,
    total: 2 << 20,
};

/// Memory from the allocator, and the amount for the current frame.
#[derive(Default)]
struct Metered {
    given: usize,
}

impl Supply for Metered {
    type Buffer = Vec<u8>;

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        assert!(length <= LIMITS.total as usize, "{length} bytes in one buffer");
        let reserved = to_reserve(0, length);
        self.given += reserved;
        vec![0; reserved]
    }

    fn grow(&mut self, buffer: &mut Vec<u8>, length: usize) -> bool {
        let reserved = to_reserve(buffer.len(), length);
        self.given += reserved - buffer.len();
        buffer.resize(reserved, 0);
        true
    }

    fn freeze(&mut self, buffer: Vec<u8>) -> Bytes {
        self.given -= buffer.len();
        buffer.into()
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((cuts, wire)) = data.split_at_checked(4) else {
        return;
    };
    let (frames, error) = read(wire, &[usize::MAX]);
    let sizes: Vec<usize> = cuts.iter().map(|cut| 1 + usize::from(*cut)).collect();
    assert_eq!(read(wire, &sizes), (frames.clone(), error));
    let mut again = Vec::new();
    for frame in &frames {
        write(frame, &mut again);
    }
    assert!(
        wire.starts_with(&again),
        "frames are written as they were read"
    );
});

fn read(mut wire: &[u8], sizes: &[usize]) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = Decoder::new(LIMITS, Metered::default());
    let mut frames = Vec::new();
    let mut sizes = sizes.iter().cycle();
    while !wire.is_empty() {
        let room = decoder.room();
        assert!(!room.is_empty());
        let size = sizes.next().map_or(1, |size| *size);
        let count = size.min(room.len()).min(wire.len());
        room[..count].copy_from_slice(&wire[..count]);
        decoder.filled(count);
        wire = &wire[count..];
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

fn write(frame: &Frame, wire: &mut Vec<u8>) {
    let heads: Vec<PartHead> = frame
        .parts
        .iter()
        .map(|part| match part {
            Part::Here(bytes) => PartHead::inline(bytes.len() as u64),
            Part::Elsewhere(head) => *head,
        })
        .collect();
    assert_eq!(LIMITS.check(frame.body.len(), &heads), Ok(()));
    encode(&frame.header, &frame.body, &heads, wire);
    for part in &frame.parts {
        if let Part::Here(bytes) = part {
            wire.extend_from_slice(bytes);
        }
    }
}
