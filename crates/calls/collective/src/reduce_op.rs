//! The operators of reductions.

use std::fmt;

/// The operator that combines two values.
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
    /// Their sum. Integers wrap around.
    Sum,
    /// The sum of all, divided by the world size. Integers are rounded towards zero.
    Average,
    /// Their product. Integers wrap around.
    Product,
    /// The smaller one; not-a-number if either is.
    Min,
    /// The greater one; not-a-number if either is.
    Max,
    /// Bits that both have. Integers and `Bool` only.
    BitAnd,
    /// Bits that either has. Integers and `Bool` only.
    BitOr,
    /// Bits that one of them has. Integers and `Bool` only.
    BitXor,
    /// The sum of the products of each rank's values with this factor of that rank; ranks may pass different
    /// factors. Other ranks see it as `Sum`. Floats only.
    PremulSum(f64),
}

impl ReduceOp {
    /// Those that travel, in the order of their codes on the wire, which begin with 1.
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

    /// Whether only floats have it.
    pub fn is_for_floats(self) -> bool {
        matches!(self, Self::PremulSum(_))
    }

    /// Whether it combines bits, which floats do not have.
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
