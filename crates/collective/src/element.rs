//! The types of values that a group can carry. On the wire all are little-endian.

use std::fmt;

use crate::reduce::Reduce;

/// The type of the elements of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// `u8`
    U8,
    /// `i32`
    I32,
    /// `i64`
    I64,
    /// `f32`
    F32,
    /// `f64`
    F64,
}

impl fmt::Display for ElementType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F32 => "f32",
            Self::F64 => "f64",
        })
    }
}

/// A value that a group can carry and combine. Sealed, because the wire names the types.
pub trait Element: Copy + Send + Sync + fmt::Debug + sealed::Sealed + 'static {
    /// Its name on the wire and in errors.
    const TYPE: ElementType;

    /// Appends the bytes of the values.
    fn encode(values: &[Self], bytes: &mut Vec<u8>);

    /// The values in the bytes; what remains after the last whole value is left out.
    fn decode(bytes: &[u8]) -> impl Iterator<Item = Self>;

    /// The sum.
    fn add(left: Self, right: Self) -> Self;

    /// The smaller one.
    fn least(left: Self, right: Self) -> Self;

    /// The greater one.
    fn greatest(left: Self, right: Self) -> Self;

    /// For averages; `by` is at least 1.
    fn divide(self, by: u32) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($type:ident, $name:ident, $add:expr, $not_a_number:expr, $divide:expr) => {
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            fn encode(values: &[Self], bytes: &mut Vec<u8>) {
                let start = bytes.len();
                bytes.resize(start + size_of_val(values), 0);
                let (chunks, _) = bytes[start..].as_chunks_mut();
                for (chunk, value) in chunks.iter_mut().zip(values) {
                    *chunk = value.to_le_bytes();
                }
            }

            fn decode(bytes: &[u8]) -> impl Iterator<Item = Self> {
                bytes.as_chunks().0.iter().copied().map(Self::from_le_bytes)
            }

            #[inline]
            fn add(left: Self, right: Self) -> Self {
                $add(left, right)
            }

            #[inline]
            fn least(left: Self, right: Self) -> Self {
                if $not_a_number(left) || left < right {
                    left
                } else {
                    right
                }
            }

            #[inline]
            fn greatest(left: Self, right: Self) -> Self {
                if $not_a_number(left) || left > right {
                    left
                } else {
                    right
                }
            }

            #[inline]
            fn divide(self, by: u32) -> Self {
                $divide(self, by)
            }
        }
    };
}

element!(u8, U8, u8::wrapping_add, |_| false, |value, by| {
    (u32::from(value) / by) as u8
});
element!(i32, I32, i32::wrapping_add, |_| false, |value, by| {
    (i64::from(value) / i64::from(by)) as i32
});
element!(i64, I64, i64::wrapping_add, |_| false, |value, by| {
    value / i64::from(by)
});
element!(
    f32,
    F32,
    |left: f32, right: f32| left + right,
    f32::is_nan,
    |value, by| value / by as f32
);
element!(
    f64,
    F64,
    |left: f64, right: f64| left + right,
    f64::is_nan,
    |value, by| value / f64::from(by)
);

/// Combines what arrived with the own values. With `arrived_first` what arrived is the left operand.
///
/// The caller puts the value of the lower rank on the left on both sides of an exchange, so that
/// both get the same bits even where the operands matter (not-a-number, negative zero).
pub(crate) fn combine<T: Element>(
    reduce: Reduce,
    own: &mut [T],
    arrived: &[u8],
    arrived_first: bool,
) {
    match reduce {
        Reduce::Sum | Reduce::Average => each(own, arrived, arrived_first, T::add),
        Reduce::Min => each(own, arrived, arrived_first, T::least),
        Reduce::Max => each(own, arrived, arrived_first, T::greatest),
    }
}

fn each<T: Element>(
    own: &mut [T],
    arrived: &[u8],
    arrived_first: bool,
    combine: impl Fn(T, T) -> T,
) {
    let pairs = own.iter_mut().zip(T::decode(arrived));
    if arrived_first {
        pairs.for_each(|(own, arrived)| *own = combine(arrived, *own));
    } else {
        pairs.for_each(|(own, arrived)| *own = combine(*own, arrived));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<T: Element>(values: &[T]) -> Vec<u8> {
        let mut bytes = Vec::new();
        T::encode(values, &mut bytes);
        bytes
    }

    fn combined<T: Element>(reduce: Reduce, own: T, arrived: T) -> T {
        let mut own = [own];
        combine(reduce, &mut own, &bytes_of(&[arrived]), false);
        own[0]
    }

    #[test]
    fn values_are_little_endian_on_the_wire() {
        assert_eq!(bytes_of(&[1_i32, -2]), [1, 0, 0, 0, 254, 255, 255, 255]);
        assert_eq!(bytes_of(&[1.0_f32]), [0, 0, 0x80, 0x3f]);
        let values: Vec<i64> = i64::decode(&bytes_of(&[i64::MIN, 7])).collect();
        assert_eq!(values, [i64::MIN, 7]);
    }

    #[test]
    fn reductions_of_plain_numbers() {
        assert_eq!(combined(Reduce::Sum, 3_i32, 4), 7);
        assert_eq!(combined(Reduce::Sum, i64::MAX, 1), i64::MIN);
        assert_eq!(combined(Reduce::Min, -1.5_f64, 2.0), -1.5);
        assert_eq!(combined(Reduce::Max, 200_u8, 7), 200);
    }

    #[test]
    fn not_a_number_is_never_lost() {
        for reduce in [Reduce::Sum, Reduce::Min, Reduce::Max] {
            assert!(combined(reduce, f32::NAN, 1.0).is_nan());
            assert!(combined(reduce, 1.0, f32::NAN).is_nan());
        }
    }

    #[test]
    fn both_sides_of_an_exchange_get_the_same_bits() {
        let (low, high) = (f32::from_bits(0x7fc0_0001), f32::from_bits(0x7fc0_0002));
        for reduce in [Reduce::Sum, Reduce::Min, Reduce::Max] {
            for (low, high) in [(low, high), (0.0, -0.0)] {
                let (mut at_low, mut at_high) = ([low], [high]);
                combine(reduce, &mut at_low, &bytes_of(&[high]), false);
                combine(reduce, &mut at_high, &bytes_of(&[low]), true);
                assert_eq!(at_low[0].to_bits(), at_high[0].to_bits());
            }
        }
    }

    #[test]
    fn integers_are_divided_towards_zero() {
        assert_eq!((-7_i32).divide(2), -3);
        assert_eq!(255_u8.divide(300), 0);
        assert_eq!(7.0_f32.divide(2), 3.5);
    }
}
