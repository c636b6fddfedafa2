//! Fields as bytes, in order: integers are little-endian.
//!
//! A duration is a number of milliseconds.

use std::time::Duration;

/// A field of the wire or of a record.
pub(crate) trait Field {
    fn write(&self, out: &mut Vec<u8>);
}

pub(crate) fn write(out: &mut Vec<u8>, fields: &[&dyn Field]) {
    fields.iter().for_each(|field| field.write(out));
}

impl Field for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Field for u8 {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
}

impl Field for u16 {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Field for u32 {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Field for u64 {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Field for Duration {
    fn write(&self, out: &mut Vec<u8>) {
        let milliseconds = u64::try_from(self.as_millis()).unwrap_or(u64::MAX);
        milliseconds.write(out);
    }
}

/// A field that is omitted if it is `None`.
impl<T: Field> Field for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|field| field.write(out));
    }
}
