//! From a message to the bytes of a frame.

use super::header::{HEADER_LENGTH, Header};
use super::part::{PartHead, SECTION_LENGTH};

/// Appends header, sections and body to `into`. The bytes of the inline parts follow it on the
/// wire, in their order, and are not copied here.
///
/// # Panics
///
/// If the body or the number of parts does not fit the format, which [`super::Limits::check`] finds
/// out beforehand.
pub fn encode(header: &Header, body: &[u8], parts: &[PartHead], into: &mut Vec<u8>) {
    let length = u32::try_from(body.len()).expect("limits are checked before a frame is written");
    let sections = u16::try_from(parts.len()).expect("limits are checked before");
    into.reserve(HEADER_LENGTH + parts.len() * SECTION_LENGTH + body.len());
    into.extend_from_slice(&header.to_bytes(length, sections));
    for part in parts {
        into.extend_from_slice(&part.to_bytes());
    }
    into.extend_from_slice(body);
}
