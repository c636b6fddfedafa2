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

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Field for $integer {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i32, i64);

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
