//! Operators for reductions.

use std::fmt;

/// Operator that combines two values.
///
/// | operator | integers | floats | [`Bool`](crate::Bool) |
/// |---|---|---|---|
/// | `Sum` | wraps around | yes | true if any is |
/// | `Average` | rounded towards zero | yes | refused |
/// | `Product`, `Min` | yes, `Product` wraps around | yes | true if all are |
/// | `Max` | yes | yes | true if any is |
/// | `BitAnd`, `BitOr`, `BitXor` | yes | refused | yes |
/// | `PremulSum` | refused | yes | refused |
///
/// ```
/// use rdzv_collective::{ElementType, ReduceOp};
///
/// assert!(ElementType::F16.allows(ReduceOp::PremulSum(0.25)));
/// assert!(!ElementType::I32.allows(ReduceOp::PremulSum(0.25)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReduceOp {
    /// Sum of both values. Integers wrap around.
    Sum,
    /// Sum of all values, divided by the world size.
    ///
    /// For integers, the sum wraps around, and the quotient is rounded towards zero.
    Average,
    /// Product of both values. Integers wrap around.
    Product,
    /// Smaller value; NaN if either value is NaN.
    Min,
    /// Greater value; NaN if either value is NaN.
    Max,
    /// Bitwise AND. Integers and `Bool` only.
    BitAnd,
    /// Bitwise OR. Integers and `Bool` only.
    BitOr,
    /// Bitwise XOR. Integers and `Bool` only.
    BitXor,
    /// Sum of each rank's values multiplied by that rank's factor. Floats only.
    ///
    /// Ranks may pass different factors. Other ranks see the operator as `Sum`.
    PremulSum(f64),
}

impl ReduceOp {
    /// Operators on the wire, in the order of their codes, from 1.
    pub(crate) const ALL: [Self; 8] = [
        Self::Sum,
        Self::Average,
        Self::Min,
        Self::Max,
        Self::Product,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
    ];

    /// `true` if the operator supports only floating-point values.
    pub fn is_for_floats(self) -> bool {
        matches!(self, Self::PremulSum(_))
    }

    /// `true` if the operator combines bits, which floats do not support.
    pub(crate) fn is_bitwise(self) -> bool {
        matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sum => "sum",
            Self::Average => "average",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
            Self::BitAnd => "bitwise and",
            Self::BitOr => "bitwise or",
            Self::BitXor => "bitwise exclusive or",
            Self::PremulSum(_) => "premultiplied sum",
        })
    }
}
