//! Access to the elements of tensors as Rust numbers.

use std::borrow::Cow;

use bytes::Bytes;
use half::{bf16, f16};
use rdzv_core::quantity::count;
use rdzv_rpc_proto::tensor::{DataType, TensorMeta};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Storage, Tensor};
use crate::RpcError;

/// Rust type whose values can be the elements of a tensor.
pub trait TensorElement: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {
    /// Data type of tensors that are created from this type.
    const DATA_TYPE: DataType;

    /// `true` if elements with this data type can be read as this Rust type.
    fn reads(data_type: DataType) -> bool {
        data_type == Self::DATA_TYPE
    }
}

macro_rules! elements {
    ($($rust:ty: $data_type:ident,)*) => {$(
        impl TensorElement for $rust {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
    )*};
}

elements! {
    f64: F64, f32: F32, f16: F16, bf16: Bf16,
    i64: I64, i32: I32, i16: I16, i8: I8,
    u64: U64, u32: U32, u16: U16,
    [f32; 2]: C64,
}

/// Implementation for bytes, 8-bit floating-point numbers and booleans.
///
/// Rust has no 8-bit floating-point type, and a byte from another process may not be a valid
/// `bool`.
impl TensorElement for u8 {
    const DATA_TYPE: DataType = DataType::U8;

    fn reads(data_type: DataType) -> bool {
        use DataType::{Bool, F8E4M3, F8E5M2, U8};
        matches!(data_type, U8 | Bool | F8E4M3 | F8E5M2)
    }
}

/// Vector of numbers, readable as bytes without a copy.
struct Numbers<T>(Vec<T>);

impl<T: TensorElement> AsRef<[u8]> for Numbers<T> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Tensor {
    /// Creates a contiguous CPU tensor from these numbers, without a copy.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the shape does not match the number of elements.
    pub fn from_vec<T: TensorElement>(
        numbers: Vec<T>,
        shape: impl Into<Vec<usize>>,
    ) -> Result<Self, RpcError> {
        let meta = TensorMeta::contiguous(T::DATA_TYPE, shape.into())?;
        if meta.count() != numbers.len() {
            return Err(RpcError::invalid(format!(
                "a tensor of shape {:?} has {}, but the number of values is {}",
                meta.shape(),
                count(meta.count(), "element"),
                numbers.len()
            )));
        }
        Ok(Self {
            storage: Storage::host(Bytes::from_owner(Numbers(numbers))),
            meta,
        })
    }

    /// Returns the elements as a slice, with the last index varying fastest.
    ///
    /// The slice borrows the elements if they are in host memory, in this order, and aligned for
    /// their type. Otherwise the elements are copied.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the elements have another type; otherwise the errors of
    /// [`contiguous`](Self::contiguous).
    pub fn as_slice<T: TensorElement>(&self) -> Result<Cow<'_, [T]>, RpcError> {
        if !T::reads(self.data_type()) {
            let (rust, data_type) = (std::any::type_name::<T>(), self.data_type());
            let message = format!("the elements of the tensor are {data_type}, not {rust}");
            return Err(RpcError::invalid(message));
        }
        if let Some(bytes) = self.storage.host_bytes()
            && self.meta.is_contiguous()
            && !self.meta.is_empty()
            && let Ok(numbers) = <[T]>::ref_from_bytes(&bytes[self.meta.reach()])
        {
            return Ok(Cow::Borrowed(numbers));
        }
        let bytes = self.to_bytes()?;
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(self.meta.count()).map_err(|_| {
            let message = format!("cannot allocate memory for {} numbers", self.meta.count());
            RpcError::invalid(message)
        })?;
        numbers.resize(self.meta.count(), T::new_zeroed());
        numbers
            .as_mut_slice()
            .as_mut_bytes()
            .copy_from_slice(&bytes);
        Ok(Cow::Owned(numbers))
    }
}
