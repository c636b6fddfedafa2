//! Types of the elements of a tensor.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Type of an element. Names and sizes are those of safetensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
#[repr(u8)]
pub enum DataType {
    /// IEEE double precision.
    F64 = 1,
    /// IEEE single precision.
    F32 = 2,
    /// IEEE half precision.
    F16 = 3,
    /// Upper half of an [`F32`](Self::F32).
    Bf16 = 4,
    /// 8 bits: 4 for the exponent, 3 for the mantissa.
    F8E4M3 = 5,
    /// 8 bits: 5 for the exponent, 2 for the mantissa.
    F8E5M2 = 6,
    /// Signed, 64 bits.
    I64 = 7,
    /// Signed, 32 bits.
    I32 = 8,
    /// Signed, 16 bits.
    I16 = 9,
    /// Signed, 8 bits.
    I8 = 10,
    /// Unsigned, 64 bits.
    U64 = 11,
    /// Unsigned, 32 bits.
    U32 = 12,
    /// Unsigned, 16 bits.
    U16 = 13,
    /// Unsigned, 8 bits.
    U8 = 14,
    /// A byte that is 0 or 1.
    Bool = 15,
    /// A complex number: two [`F32`](Self::F32), the real part first.
    C64 = 16,
}

/// Number that is not a data type of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0} is not a data type that this version knows (1 to 16)")]
pub struct UnknownDataType(pub u8);

impl DataType {
    /// All data types by number, each with its name in safetensors.
    const NAMES: [(Self, &'static str); 16] = [
        (Self::F64, "F64"),
        (Self::F32, "F32"),
        (Self::F16, "F16"),
        (Self::Bf16, "BF16"),
        (Self::F8E4M3, "F8_E4M3"),
        (Self::F8E5M2, "F8_E5M2"),
        (Self::I64, "I64"),
        (Self::I32, "I32"),
        (Self::I16, "I16"),
        (Self::I8, "I8"),
        (Self::U64, "U64"),
        (Self::U32, "U32"),
        (Self::U16, "U16"),
        (Self::U8, "U8"),
        (Self::Bool, "BOOL"),
        (Self::C64, "C64"),
    ];

    /// Returns the size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 | Self::C64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Returns the name in safetensors, e.g. `BF16`.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize - 1].1
    }

    /// Returns the number on the wire, which never changes.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl From<DataType> for u8 {
    fn from(data_type: DataType) -> Self {
        data_type.code()
    }
}

impl TryFrom<u8> for DataType {
    type Error = UnknownDataType;

    fn try_from(code: u8) -> Result<Self, UnknownDataType> {
        let at = usize::from(code).wrapping_sub(1);
        let known = Self::NAMES.get(at).map(|(data_type, _)| *data_type);
        known.ok_or(UnknownDataType(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_there_and_back_and_others_are_refused() {
        for (data_type, _) in DataType::NAMES {
            assert_eq!(DataType::try_from(data_type.code()), Ok(data_type));
        }
        for code in [0, 17, 255] {
            assert_eq!(DataType::try_from(code), Err(UnknownDataType(code)));
        }
    }

    #[test]
    fn names_are_those_of_safetensors() {
        let names = (1..=16).map(|code| DataType::try_from(code).unwrap().to_string());
        let names: Vec<_> = names.collect();
        assert_eq!(
            names.join(" "),
            "F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U64 U32 U16 U8 BOOL C64"
        );
    }
}
