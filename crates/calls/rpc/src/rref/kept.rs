//! Values of any type that an agent keeps for remote references.

use std::any::{Any, type_name};
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{RpcError, RpcErrorKind};
use crate::payload::Payload;
use crate::runtime::codec;
use crate::runtime::core::CallContext;

type Encode = fn(&CallContext, &(dyn Any + Send + Sync)) -> Result<Payload, RpcError>;

#[derive(Clone)]
pub(crate) struct Kept {
    value: Arc<dyn Any + Send + Sync>,
    type_name: &'static str,
    /// Encoder for copies; `None` if the value can be used only in place.
    encode: Option<Encode>,
}

/// Result of a function whose value is kept: the value, or an error.
pub(crate) type Made = Result<Kept, RpcError>;

/// Function whose result is kept instead of sent.
pub(crate) type Keep =
    Arc<dyn Fn(CallContext, Payload) -> Pin<Box<dyn Future<Output = Made> + Send>> + Send + Sync>;

impl Kept {
    /// Keeps a value that can also be copied to other workers.
    pub(crate) fn new<T: Serialize + Send + Sync + 'static>(value: T) -> Self {
        Self {
            encode: Some(|context, value| match value.downcast_ref::<T>() {
                Some(value) => codec::encode_output(context, value),
                None => Err(RpcError::new(
                    RpcErrorKind::Internal,
                    "a stored value does not have its recorded type",
                )),
            }),
            ..Self::only_here(value)
        }
    }

    /// Keeps a value that can be used only on this worker.
    pub(crate) fn only_here<T: Send + Sync + 'static>(value: T) -> Self {
        Self {
            value: Arc::new(value),
            type_name: type_name::<T>(),
            encode: None,
        }
    }

    /// Returns the value.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`] if the value has another type.
    pub(super) fn get<T: Send + Sync + 'static>(self) -> Result<Arc<T>, RpcError> {
        let is = self.type_name;
        self.value.downcast::<T>().map_err(|_| {
            let wanted = type_name::<T>();
            let text = format!("the value behind the reference is a {is}, not a {wanted}");
            RpcError::invalid(text)
        })
    }

    /// Encodes a copy of the value for a worker that requests it.
    pub(super) fn encode(&self, context: &CallContext) -> Result<Payload, RpcError> {
        let Some(encode) = self.encode else {
            let is = self.type_name;
            let text = format!(
                "a {is} can only be used through its methods and cannot be sent: call a \
                 ValueMethod on it"
            );
            return Err(RpcError::invalid(text));
        };
        encode(context, self.value.as_ref())
    }
}
