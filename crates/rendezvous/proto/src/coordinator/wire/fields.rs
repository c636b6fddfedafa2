//! Reads and writes fields.

use std::time::Duration;

use rdzv_core::escape::{escape, is_plain};

use super::WireError;
use crate::field::{Field, write};

/// Maximum length of a text in bytes.
///
/// A writer truncates a longer text between two characters. A reader rejects it.
const MAX_TEXT: usize = 4096;

/// Reader that takes fields from the front of a payload.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let Some((head, rest)) = self.0.split_first_chunk::<N>() else {
            return Err(WireError::Short(what));
        };
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, WireError> {
        self.u8(what).map(|byte| byte != 0)
    }

    pub(super) fn duration(&mut self, what: &'static str) -> Result<Duration, WireError> {
        self.u64(what).map(Duration::from_millis)
    }

    /// Reads an optional part at the end; `None` if the payload has ended.
    pub(super) fn rest<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        match self.0 {
            [] => Ok(None),
            _ => read(self).map(Some),
        }
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str, WireError> {
        let length = usize::from(self.u16(what)?);
        if length > MAX_TEXT {
            return Err(WireError::LongText(what));
        }
        let Some((head, rest)) = self.0.split_at_checked(length) else {
            return Err(WireError::Short(what));
        };
        self.0 = rest;
        std::str::from_utf8(head).map_err(|_| WireError::NotText(what))
    }

    /// Reads a text for users, and escapes it.
    pub(super) fn sentence(&mut self, what: &'static str) -> Result<String, WireError> {
        self.text(what).map(escape)
    }

    /// Reads a host name or an address.
    pub(super) fn host(&mut self, what: &'static str) -> Result<String, WireError> {
        let host = self.text(what)?;
        if is_plain(host) {
            Ok(host.to_owned())
        } else {
            Err(WireError::NotAHost(what))
        }
    }
}

/// A text, truncated to the maximum length.
impl Field for String {
    fn write(&self, out: &mut Vec<u8>) {
        text(out, self);
    }
}

/// Writes a text, truncated to the maximum length.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    let kept = &text[..text.floor_char_boundary(MAX_TEXT)];
    write(out, &[&(kept.len() as u16)]);
    out.extend_from_slice(kept.as_bytes());
}

/// Returns the items that a list of the wire can contain.
pub(super) fn at_most_255<T>(items: &[T]) -> &[T] {
    &items[..items.len().min(usize::from(u8::MAX))]
}
