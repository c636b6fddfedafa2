//! Parts: bytes beside the body, and their locations.

use bytes::Bytes;

use super::error::FrameError;
use super::header::{HEADER_LENGTH, Header, at};

/// Length in bytes of a section, which describes one part.
pub const SECTION_LENGTH: usize = 32;

/// Location of the bytes of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartLocation {
    /// In the frame, after the body.
    Inline,
    /// In the memory of the process that sent the frame.
    Process {
        /// Address in that process.
        address: u64,
    },
    /// In memory that sender and receiver share.
    Arena {
        /// Number of the sender's arena.
        arena: u32,
        /// Number of this use of the location.
        ///
        /// A release contains this number, see [`release`](super::release).
        generation: u32,
        /// Offset in the arena, in bytes.
        offset: u64,
    },
}

/// Description of a part in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PartHead {
    /// Location of the bytes.
    pub location: PartLocation,
    /// Number of bytes.
    pub length: u64,
}

/// Part that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Bytes that arrived with the frame.
    Here(Bytes),
    /// Bytes to fetch, or to use in place.
    Elsewhere(PartHead),
}

/// Frame that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Header of the frame.
    pub header: Header,
    /// Serialised value.
    pub body: Bytes,
    /// Parts, to which the body refers by number.
    pub parts: Vec<Part>,
}

const INLINE: u16 = 0;
const PROCESS: u16 = 1;
const ARENA: u16 = 2;

impl PartHead {
    /// Describes a part whose bytes follow the body.
    pub fn inline(length: u64) -> Self {
        Self {
            location: PartLocation::Inline,
            length,
        }
    }

    /// Returns the bytes of a section.
    ///
    /// These are location u16, 0 u16, arena u32, length u64, address or offset u64, generation u32
    /// and 0 u32.
    pub(super) fn to_bytes(self) -> [u8; SECTION_LENGTH] {
        let (location, arena, generation, offset) = match self.location {
            PartLocation::Inline => (INLINE, 0, 0, 0),
            PartLocation::Process { address } => (PROCESS, 0, 0, address),
            PartLocation::Arena {
                arena,
                generation,
                offset,
            } => (ARENA, arena, generation, offset),
        };
        let mut bytes = [0; SECTION_LENGTH];
        bytes[0..2].copy_from_slice(&location.to_le_bytes());
        bytes[4..8].copy_from_slice(&arena.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&generation.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; SECTION_LENGTH]) -> Result<Self, FrameError> {
        let arena = u32::from_le_bytes(at(bytes, 4));
        let offset = u64::from_le_bytes(at(bytes, 16));
        let generation = u32::from_le_bytes(at(bytes, 24));
        let location = match u16::from_le_bytes(at(bytes, 0)) {
            INLINE => PartLocation::Inline,
            PROCESS => PartLocation::Process { address: offset },
            ARENA => PartLocation::Arena {
                arena,
                generation,
                offset,
            },
            other => return Err(FrameError::Location(other)),
        };
        let head = Self {
            location,
            length: u64::from_le_bytes(at(bytes, 8)),
        };
        // Each section has exactly one encoding. Otherwise other set bits would be lost silently.
        if head.to_bytes() != *bytes {
            return Err(FrameError::Reserved("a section"));
        }
        Ok(head)
    }
}

/// Appends header, sections and body to `into`.
///
/// The bytes of the inline parts follow on the wire, in their order. They are not copied here.
///
/// # Panics
///
/// Panics if the body or the number of parts does not fit the format; check with
/// [`super::FrameLimits::check`] first.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_read_as_it_was_written() {
        let process = PartLocation::Process {
            address: 0x7fff_0000_1000,
        };
        let arena = PartLocation::Arena {
            arena: 1,
            generation: u32::MAX,
            offset: 1 << 40,
        };
        for location in [PartLocation::Inline, process, arena] {
            for length in [0, 1, u64::MAX] {
                let head = PartHead { location, length };
                assert_eq!(PartHead::from_bytes(&head.to_bytes()), Ok(head));
            }
        }
    }

    #[test]
    fn a_section_with_anything_else_set_is_refused() {
        let inline = PartHead::inline(5).to_bytes();
        for (at, error) in [
            (0, FrameError::Location(255)),
            (2, FrameError::Reserved("a section")),
            (4, FrameError::Reserved("a section")),
            (16, FrameError::Reserved("a section")),
            (24, FrameError::Reserved("a section")),
            (31, FrameError::Reserved("a section")),
        ] {
            let mut bytes = inline;
            bytes[at] = 255;
            assert_eq!(PartHead::from_bytes(&bytes), Err(error));
        }
    }
}
