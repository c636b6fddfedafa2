//! Size limits of frames.

use super::error::FrameError;
use super::part::PartHead;

/// Size limits of a frame, checked before its body and parts get memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// Maximum length of the body, in bytes (default: 64 MiB).
    pub body: u32,
    /// Maximum number of parts (default: 65535).
    pub sections: u16,
    /// Maximum total of body and parts in bytes (default: 4 GiB).
    ///
    /// Parts count regardless of their location.
    pub total: u64,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self {
            body: 64 << 20,
            sections: u16::MAX,
            total: 4 << 30,
        }
    }
}

impl FrameLimits {
    /// Limits for a peer that has not identified itself.
    pub const UNAUTHENTICATED: Self = Self {
        body: 4 << 10,
        sections: 0,
        total: 4 << 10,
    };

    /// Checks that a frame may be sent to a peer with these limits.
    ///
    /// # Errors
    ///
    /// [`FrameError`] that names the limit that the frame exceeds.
    pub fn check(&self, body: usize, parts: &[PartHead]) -> Result<(), FrameError> {
        let mut total = self.check_head(body as u64, parts.len() as u64)?;
        for part in parts {
            total = self.add(total, part.length)?;
        }
        Ok(())
    }

    /// Checks the sizes in a header, and returns the bytes counted until now.
    pub(super) fn check_head(&self, body: u64, sections: u64) -> Result<u64, FrameError> {
        if body > u64::from(self.body) {
            return Err(FrameError::Body {
                announced: body,
                limit: self.body,
            });
        }
        if sections > u64::from(self.sections) {
            return Err(FrameError::Sections {
                announced: sections,
                limit: self.sections,
            });
        }
        self.add(0, body)
    }

    /// Adds a part of this length to the bytes of a frame.
    pub(super) fn add(&self, total: u64, length: u64) -> Result<u64, FrameError> {
        let total = total.saturating_add(length);
        if total > self.total {
            return Err(FrameError::Total {
                announced: total,
                limit: self.total,
            });
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::PartLocation;
    use super::*;

    #[test]
    fn each_limit_is_kept_and_named() {
        let limits = FrameLimits {
            body: 10,
            sections: 2,
            total: 100,
        };
        let part = |length| PartHead {
            location: PartLocation::Inline,
            length,
        };
        let said = |body, parts: &[PartHead]| limits.check(body, parts).map_err(|e| e.to_string());
        assert_eq!(said(10, &[part(40), part(50)]), Ok(()));
        assert_eq!(
            said(11, &[]),
            Err("a body of 11 bytes exceeds the limit of 10".to_owned())
        );
        assert_eq!(
            said(0, &[part(0); 3]),
            Err("3 parts exceed the limit of 2".to_owned())
        );
        assert_eq!(
            said(10, &[part(91)]),
            Err("a message of at least 101 bytes exceeds the limit of 100".to_owned())
        );
        assert!(limits.check(10, &[part(u64::MAX); 2]).is_err());
    }
}
