//! Types of values that a group can transfer.
//!
//! Values are sent in their in-memory representation. Ranks with different byte orders refuse each
//! other during the handshake, so they never misread each other's values.

use std::fmt;

use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::reduce_op::ReduceOp;

/// Type of the elements in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// `u8`
    U8,
    /// `i8`
    I8,
    /// `u16`
    U16,
    /// `i16`
    I16,
    /// `u32`
    U32,
    /// `i32`
    I32,
    /// `u64`
    U64,
    /// `i64`
    I64,
    /// [`half::f16`]: IEEE half precision.
    F16,
    /// [`half::bf16`]: the upper half of an `f32`
    Bf16,
    /// `f32`
    F32,
    /// `f64`
    F64,
    /// Boolean value: [`Bool`].
    Bool,
}

impl ElementType {
    /// All types, in the order of their codes on the wire, from 1.
    pub(crate) const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::Bool,
    ];

    /// Returns the size of one value in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// `true` if an operator can combine values of this type.
    pub fn allows(self, op: ReduceOp) -> bool {
        match self {
            Self::Bool => !matches!(op, ReduceOp::Average | ReduceOp::PremulSum(_)),
            Self::F16 | Self::Bf16 | Self::F32 | Self::F64 => !op.is_bitwise(),
            _ => !matches!(op, ReduceOp::PremulSum(_)),
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// Value that a group can transfer and combine.
///
/// The trait is sealed, because the protocol has a fixed code for each type.
pub trait Element:
    Copy
    + Default
    + Send
    + Sync
    + fmt::Debug
    + FromBytes
    + IntoBytes
    + Immutable
    + KnownLayout
    + sealed::Sealed
    + 'static
{
    /// Type of the elements, as in the protocol and in errors.
    const TYPE: ElementType;

    /// Returns the combination of two values.
    ///
    /// The order of the operands matters for some values, such as NaN and negative zero.
    fn combine(reduce: ReduceOp, left: Self, right: Self) -> Self;

    /// Divides the value by `by`, at least 1, for an average.
    /// Booleans do not change.
    fn divide(self, _by: u32) -> Self {
        self
    }

    /// Returns the value multiplied by a factor, for [`ReduceOp::PremulSum`].
    ///
    /// Only floating-point values change.
    fn scale(self, _by: f64) -> Self {
        self
    }
}

/// Boolean in the representation of tensors: one byte, where 0 means false.
///
/// Reductions of several ranks return 0 or 1; other operations copy the byte.
///
/// ```
/// use rdzv_collective::Bool;
///
/// assert!(bool::from(Bool::from(true)));
/// assert_eq!(Bool::default(), Bool::from(false));
/// ```
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Bool(u8);

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(u8::from(value))
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.0 != 0
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        bool::from(*self) == bool::from(*other)
    }
}

impl Eq for Bool {}

impl fmt::Debug for Bool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        bool::from(*self).fmt(formatter)
    }
}

impl sealed::Sealed for Bool {}

impl Element for Bool {
    const TYPE: ElementType = ElementType::Bool;

    #[inline(always)]
    fn combine(reduce: ReduceOp, left: Self, right: Self) -> Self {
        let (left, right) = (left.0 != 0, right.0 != 0);
        Self::from(match reduce {
            ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => left & right,
            ReduceOp::BitXor => left ^ right,
            // Callers have refused the average and the premultiplied sum.
            _ => left | right,
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! integer {
    ($type:ident, $name:ident) => {
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            #[inline(always)]
            fn combine(reduce: ReduceOp, left: Self, right: Self) -> Self {
                match reduce {
                    ReduceOp::Sum | ReduceOp::Average | ReduceOp::PremulSum(_) => {
                        left.wrapping_add(right)
                    }
                    ReduceOp::Product => left.wrapping_mul(right),
                    ReduceOp::Min => left.min(right),
                    ReduceOp::Max => left.max(right),
                    ReduceOp::BitAnd => left & right,
                    ReduceOp::BitOr => left | right,
                    ReduceOp::BitXor => left ^ right,
                }
            }

            fn divide(self, by: u32) -> Self {
                // `i128` holds every value and every divisor, and the result fits the type again.
                (i128::from(self) / i128::from(by)) as Self
            }
        }
    };
}

integer!(u8, U8);
integer!(i8, I8);
integer!(u16, U16);
integer!(i16, I16);
integer!(u32, U32);
integer!(i32, I32);
integer!(u64, U64);
integer!(i64, I64);

macro_rules! float {
    ($type:ident, $name:ident, $wide:ident, $rounded:expr) => {
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            #[inline(always)]
            fn combine(reduce: ReduceOp, left: Self, right: Self) -> Self {
                match reduce {
                    ReduceOp::Product => left * right,
                    // If either value is NaN, the result is NaN.
                    ReduceOp::Min if left.is_nan() || left < right => left,
                    ReduceOp::Max if left.is_nan() || left > right => left,
                    ReduceOp::Min | ReduceOp::Max => right,
                    // Callers have refused the other operators: floats have no bits to combine.
                    _ => left + right,
                }
            }

            fn divide(self, by: u32) -> Self {
                $rounded(<$wide>::from(self) / by as $wide)
            }

            fn scale(self, by: f64) -> Self {
                $rounded(<$wide>::from(self) * by as $wide)
            }
        }
    };
}

float!(f32, F32, f32, f32::from);
float!(f64, F64, f64, f64::from);
// Half precision is combined in single precision, and rounded after every step.
float!(f16, F16, f32, f16::from_f32);
float!(bf16, Bf16, f32, bf16::from_f32);

/// Combines received values with the own values.
///
/// With `arrived_first` the received values are the left operand. The caller puts the value of the
/// lower rank on the left on both sides of an exchange. So both sides get the same bits even if the
/// order of the operands matters.
pub(crate) fn combine<T: Element>(
    reduce: ReduceOp,
    own: &mut [T],
    arrived: &[T],
    arrived_first: bool,
) {
    // One loop for each operator, so that the compiler can vectorise it.
    macro_rules! loops {
        ($($name:ident),*) => {
            match reduce {
                $(ReduceOp::$name => each(own, arrived, arrived_first, |left, right| {
                    T::combine(ReduceOp::$name, left, right)
                }),)*
                // The factor was applied earlier.
                ReduceOp::PremulSum(_) => combine(ReduceOp::Sum, own, arrived, arrived_first),
            }
        };
    }
    loops!(Sum, Average, Product, Min, Max, BitAnd, BitOr, BitXor);
}

#[inline(always)]
fn each<T: Element>(
    own: &mut [T],
    arrived: &[T],
    arrived_first: bool,
    combine: impl Fn(T, T) -> T,
) {
    let pairs = own.iter_mut().zip(arrived);
    if arrived_first {
        pairs.for_each(|(own, arrived)| *own = combine(*arrived, *own));
    } else {
        pairs.for_each(|(own, arrived)| *own = combine(*own, *arrived));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARITHMETIC: [ReduceOp; 4] = [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
    ];

    fn combined<T: Element>(reduce: ReduceOp, own: T, arrived: T) -> T {
        let mut own = [own];
        combine(reduce, &mut own, &[arrived], false);
        own[0]
    }

    #[test]
    fn reductions_of_plain_numbers() {
        assert_eq!(combined(ReduceOp::Sum, 3_i32, 4), 7);
        assert_eq!(combined(ReduceOp::Sum, i64::MAX, 1), i64::MIN);
        assert_eq!(combined(ReduceOp::Product, 3_u16, 4), 12);
        assert_eq!(combined(ReduceOp::Product, 300_u16, 601), 49_228);
        assert_eq!(combined(ReduceOp::Product, -300_i16, -301), 24_764);
        assert_eq!(combined(ReduceOp::Product, 1_u64 << 62, 5), 1 << 62);
        assert_eq!(combined(ReduceOp::Product, 0.5_f32, 4.0), 2.0);
        assert_eq!(combined(ReduceOp::Min, -1.5_f64, 2.0), -1.5);
        assert_eq!(combined(ReduceOp::Max, 200_u8, 7), 200);
        assert_eq!(combined(ReduceOp::BitAnd, 0b110_i8, 0b011), 0b010);
        assert_eq!(combined(ReduceOp::BitOr, 0b110_u64, 0b011), 0b111);
        assert_eq!(combined(ReduceOp::BitXor, 0b110_u32, 0b011), 0b101);
    }

    #[test]
    fn half_precision_is_rounded_once_for_each_step() {
        let of = f16::from_f32;
        assert_eq!(combined(ReduceOp::Sum, of(2048.0), of(1.0)), of(2048.0));
        assert_eq!(combined(ReduceOp::Sum, of(2048.0), of(2.0)), of(2050.0));
        let of = bf16::from_f32;
        assert_eq!(combined(ReduceOp::Max, of(-1.0), of(0.5)), of(0.5));
        assert_eq!(of(3.0).divide(2), of(1.5));
    }

    #[test]
    fn not_a_number_is_never_lost() {
        for reduce in ARITHMETIC {
            assert!(combined(reduce, f32::NAN, 1.0).is_nan());
            assert!(combined(reduce, 1.0, f32::NAN).is_nan());
            assert!(combined(reduce, bf16::NAN, bf16::ONE).is_nan());
        }
    }

    #[test]
    fn both_sides_of_an_exchange_get_the_same_bits() {
        let (low, high) = (f32::from_bits(0x7fc0_0001), f32::from_bits(0x7fc0_0002));
        for reduce in ARITHMETIC {
            for (low, high) in [(low, high), (0.0, -0.0)] {
                let (mut at_low, mut at_high) = ([low], [high]);
                combine(reduce, &mut at_low, &[high], false);
                combine(reduce, &mut at_high, &[low], true);
                assert_eq!(at_low[0].to_bits(), at_high[0].to_bits());
            }
        }
    }

    #[test]
    fn integers_are_divided_towards_zero() {
        assert_eq!((-7_i32).divide(2), -3);
        assert_eq!(255_u8.divide(300), 0);
        assert_eq!(u64::MAX.divide(1), u64::MAX);
        assert_eq!(7.0_f32.divide(2), 3.5);
    }
}
