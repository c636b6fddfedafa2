//! Compound values: lists, maps, structs, enums.

use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::{EMPTY_LIMIT, ReadError, Reader};

/// Elements of a list or struct, or entries of a map.
pub(super) struct Elements<'r, 'de> {
    reader: &'r mut Reader<'de>,
    left: usize,
    /// `true` if the bytes specify the number of elements.
    counted: bool,
}

impl<'r, 'de> Elements<'r, 'de> {
    /// Creates a reader for elements whose number the bytes specify.
    pub(super) fn new(reader: &'r mut Reader<'de>, len: usize) -> Self {
        Self {
            reader,
            left: len,
            counted: true,
        }
    }

    /// Creates a reader for elements whose number the type specifies.
    pub(super) fn fixed(reader: &'r mut Reader<'de>, len: usize) -> Self {
        Self {
            reader,
            left: len,
            counted: false,
        }
    }

    /// Number of elements to reserve memory for; most take at least one byte.
    fn hint(&self) -> usize {
        self.left.min(self.reader.left())
    }

    fn count_if_empty(&mut self, left_before: usize) -> Result<(), ReadError> {
        if self.counted && self.reader.left() == left_before {
            self.reader.empty += 1;
            if self.reader.empty > EMPTY_LIMIT {
                return Err(ReadError::TooManyEmpty);
            }
        }
        Ok(())
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        let before = self.reader.left();
        let element = seed.deserialize(&mut *self.reader)?;
        self.count_if_empty(before)?;
        Ok(Some(element))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.hint())
    }
}

impl<'de> MapAccess<'de> for Elements<'_, 'de> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        seed.deserialize(&mut *self.reader)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.hint())
    }
}

impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let variant = self.small_number(32)? as u32;
        let number: U32Deserializer<ReadError> = variant.into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_tuple(fields.len(), visitor)
    }
}
