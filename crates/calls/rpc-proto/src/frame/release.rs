//! Body of a `Release` frame: parts in arenas that are no longer used.

use super::error::FrameError;
use super::header::at;

/// Length of one released part, in bytes.
const LENGTH: usize = 8;

/// End of one loan of an [`Arena`](super::PartLocation::Arena) part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReleasedPart {
    /// Number of the lender's arena.
    pub arena: u32,
    /// Generation with which the part was lent.
    pub generation: u32,
}

/// Returns the body of a frame that returns all of these parts.
///
/// A part that appears twice was lent twice.
pub fn to_bytes(returned: &[ReleasedPart]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(returned.len() * LENGTH);
    for one in returned {
        bytes.extend_from_slice(&one.arena.to_le_bytes());
        bytes.extend_from_slice(&one.generation.to_le_bytes());
    }
    bytes
}

/// Parses the body of a `Release` frame.
///
/// # Errors
///
/// [`FrameError::Release`] if the body ends in the middle of a part.
pub fn from_bytes(body: &[u8]) -> Result<impl Iterator<Item = ReleasedPart> + '_, FrameError> {
    let (all, rest) = body.as_chunks::<LENGTH>();
    if !rest.is_empty() {
        return Err(FrameError::Release(body.len()));
    }
    Ok(all.iter().map(|bytes| ReleasedPart {
        arena: u32::from_le_bytes(at(bytes, 0)),
        generation: u32::from_le_bytes(at(bytes, 4)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_read_as_it_was_written() {
        let returned = [(0, 1), (7, u32::MAX), (7, u32::MAX)]
            .map(|(arena, generation)| ReleasedPart { arena, generation });
        let bytes = to_bytes(&returned);
        assert_eq!(bytes.len(), 24);
        assert_eq!(&bytes[8..12], 7_u32.to_le_bytes());
        assert!(from_bytes(&bytes).unwrap().eq(returned));
        assert_eq!(from_bytes(&[]).unwrap().count(), 0);
    }

    #[test]
    fn a_body_that_ends_in_the_middle_is_refused() {
        let error = from_bytes(&[0; 12]).map(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a release of 12 bytes is not a list of parts"
        );
    }
}
