//! Last frame of a connection, with the reason of its end.

use rdzv_core::escape::escape_bytes;

use super::header::{FrameKind, Header};
use super::part::encode;

/// Maximum length of a reason in bytes, within the limits before the handshake.
const LONGEST: usize = 2 << 10;

/// Returns a whole frame with the reason for closing, truncated if too long.
pub fn go_away(reason: &str) -> Vec<u8> {
    let end = reason.floor_char_boundary(LONGEST);
    let mut frame = Vec::new();
    encode(
        &Header::new(FrameKind::GoAway),
        &reason.as_bytes()[..end],
        &[],
        &mut frame,
    );
    frame
}

/// Returns the escaped reason from the body of a `GoAway` frame.
pub fn reason(body: &[u8]) -> String {
    let body = &body[..body.len().min(LONGEST)];
    escape_bytes(body)
}

#[cfg(test)]
mod tests {
    use super::super::decoder::{Decoder, FromHeap};
    use super::super::limits::FrameLimits;
    use super::*;

    #[test]
    fn an_unauthenticated_peer_gets_the_reason() {
        for text in ["the token is wrong", "é", &"é".repeat(5000)] {
            let wire = go_away(text);
            let mut decoder = Decoder::new(FrameLimits::UNAUTHENTICATED, FromHeap);
            decoder.room()[..wire.len()].copy_from_slice(&wire);
            decoder.filled(wire.len());
            let frame = decoder.next().unwrap().unwrap();
            assert_eq!(frame.header.kind, FrameKind::GoAway);
            let read = reason(&frame.body);
            assert!(text.starts_with(&read) && read.len() >= text.len().min(LONGEST - 1));
        }
    }

    #[test]
    fn a_reason_cannot_do_things_to_a_terminal() {
        assert_eq!(reason(b"a\x1b[2Jb\nc\xff"), "a\\u{1b}[2Jb\\nc\u{fffd}");
    }
}
