//! Decoder for bodies from untrusted peers: postcard with additional limits.
//!
//! A body of 1 MB can describe a value that is nested a million levels deep, and a few bytes can
//! describe a list of 2^64 elements that take no bytes. The reader rejects both. Apart from at most
//! 2^20 elements that take no bytes, the cost of decoding any other body is roughly proportional to
//! its size.

mod compound;

use serde::de::{self, Deserializer, Visitor};
use thiserror::Error;

use compound::Elements;

/// Maximum depth of nested options, lists, maps, structs and enums.
pub(super) const DEPTH_LIMIT: u16 = 256;

/// Maximum number of list elements in one body that occupy no bytes.
pub(super) const EMPTY_LIMIT: u64 = 1 << 20;

/// Reason why bytes cannot be decoded as the expected value.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum ReadError {
    #[error("it is truncated after {0} bytes")]
    Ends(usize),
    #[error("byte {at} is {byte}, which is neither 0 nor 1")]
    NoBool { at: usize, byte: u8 },
    #[error("the number at byte {0} is too large for its type")]
    TooLarge(usize),
    #[error("the text at byte {0} is not UTF-8, or not a single letter")]
    NoText(usize),
    #[error("a length is {len}, but only {left} bytes are left")]
    TooLong { len: u64, left: usize },
    #[error("it has more than {EMPTY_LIMIT} elements of zero bytes")]
    TooManyEmpty,
    #[error("it is nested more than {DEPTH_LIMIT} levels deep")]
    TooDeep,
    #[error("its type needs a self-describing format, which this format is not")]
    NotDescribed,
    #[error("{0}")]
    Custom(String),
}

impl de::Error for ReadError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }
}

#[derive(Debug)]
pub(super) struct Reader<'de> {
    input: &'de [u8],
    len: usize,
    depth: u16,
    empty: u64,
}

impl<'de> Reader<'de> {
    pub(super) fn new(input: &'de [u8]) -> Self {
        Self {
            input,
            len: input.len(),
            depth: 0,
            empty: 0,
        }
    }

    /// Returns the number of unread bytes.
    pub(super) fn left(&self) -> usize {
        self.input.len()
    }

    fn at(&self) -> usize {
        self.len - self.input.len()
    }

    fn take(&mut self, len: usize) -> Result<&'de [u8], ReadError> {
        let (taken, rest) = self
            .input
            .split_at_checked(len)
            .ok_or(ReadError::Ends(self.len))?;
        self.input = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, ReadError> {
        let (&byte, rest) = self.input.split_first().ok_or(ReadError::Ends(self.len))?;
        self.input = rest;
        Ok(byte)
    }

    fn flag(&mut self) -> Result<bool, ReadError> {
        let at = self.at();
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            byte => Err(ReadError::NoBool { at, byte }),
        }
    }

    /// Reads a varint: 7 bits per byte, lowest first; a set top bit continues it.
    fn number(&mut self, bits: u32) -> Result<u128, ReadError> {
        let at = self.at();
        let mut number = 0;
        for shift in (0..bits).step_by(7) {
            let byte = self.byte()?;
            let low = u128::from(byte & 0x7f);
            if bits - shift < 7 && low >> (bits - shift) != 0 {
                return Err(ReadError::TooLarge(at));
            }
            number |= low << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(ReadError::TooLarge(at))
    }

    fn small_number(&mut self, bits: u32) -> Result<u64, ReadError> {
        // Fast path for one byte: most numbers are lengths or variants.
        match self.input.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.input = rest;
                Ok(u64::from(byte))
            }
            _ => Ok(self.number(bits)? as u64),
        }
    }

    /// Reads a signed number: the codes 0, 1, 2, 3, 4 stand for 0, -1, 1, -2, 2.
    fn signed(&mut self, bits: u32) -> Result<i64, ReadError> {
        let number = self.small_number(bits)?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn counted(&mut self) -> Result<&'de [u8], ReadError> {
        let len = self.small_number(64)?;
        let left = self.left();
        match usize::try_from(len) {
            Ok(len) if len <= left => self.take(len),
            _ => Err(ReadError::TooLong { len, left }),
        }
    }

    fn text(&mut self) -> Result<&'de str, ReadError> {
        let at = self.at();
        std::str::from_utf8(self.counted()?).map_err(|_| ReadError::NoText(at))
    }

    /// Reads the length of a list, and checks it against the number of bytes left.
    fn list_len(&mut self) -> Result<usize, ReadError> {
        let len = self.small_number(64)?;
        let left = self.left();
        if len > left as u64 + EMPTY_LIMIT {
            return Err(ReadError::TooLong { len, left });
        }
        usize::try_from(len).map_err(|_| ReadError::TooLong { len, left })
    }

    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        if self.depth == DEPTH_LIMIT {
            return Err(ReadError::TooDeep);
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}

/// Defines methods that read a number of some width as some type.
macro_rules! numbers {
    ($($method:ident, $visit:ident, $read:ident, $bits:literal as $type:ty;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            visitor.$visit(self.$read($bits)? as $type)
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = ReadError;

    numbers! {
        deserialize_u16, visit_u16, small_number, 16 as u16;
        deserialize_u32, visit_u32, small_number, 32 as u32;
        deserialize_u64, visit_u64, small_number, 64 as u64;
        deserialize_u128, visit_u128, number, 128 as u128;
        deserialize_i16, visit_i16, signed, 16 as i16;
        deserialize_i32, visit_i32, signed, 32 as i32;
        deserialize_i64, visit_i64, signed, 64 as i64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ReadError> {
        Err(ReadError::NotDescribed)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_bool(self.flag()?)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_i8(self.byte()? as i8)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_u8(self.byte()?)
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let number = self.number(128)?;
        visitor.visit_i128((number >> 1) as i128 ^ -((number & 1) as i128))
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let bytes = self.take(4)?.try_into().expect("four bytes");
        visitor.visit_f32(f32::from_le_bytes(bytes))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let bytes = self.take(8)?.try_into().expect("eight bytes");
        visitor.visit_f64(f64::from_le_bytes(bytes))
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let at = self.at();
        let mut letters = self.text()?.chars();
        match (letters.next(), letters.next()) {
            (Some(letter), None) => visitor.visit_char(letter),
            _ => Err(ReadError::NoText(at)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_borrowed_bytes(self.counted()?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_borrowed_bytes(self.counted()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        if self.flag()? {
            self.deeper(|reader| visitor.visit_some(reader))
        } else {
            visitor.visit_none()
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deeper(|reader| visitor.visit_newtype_struct(reader))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let len = self.list_len()?;
        self.deeper(|reader| visitor.visit_seq(Elements::new(reader, len)))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deeper(|reader| visitor.visit_seq(Elements::fixed(reader, len)))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let len = self.list_len()?;
        self.deeper(|reader| visitor.visit_map(Elements::new(reader, len)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deeper(|reader| visitor.visit_enum(reader))
    }

    serde::forward_to_deserialize_any! { identifier ignored_any }

    fn is_human_readable(&self) -> bool {
        false
    }
}
