//! Methods of values: their first argument is the value behind a reference.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use rdzv_rpc_proto::rref::Fetch;

use crate::runtime::method::Method;

/// A method of values of type `T`, by its name.
///
/// Both ends share it as a constant:
///
/// ```
/// use std::sync::atomic::AtomicU64;
///
/// use rdzv_rpc::ValueMethod;
///
/// const ADD: ValueMethod<AtomicU64, u64, u64> = ValueMethod::new("counter.add");
/// ```
///
/// The owner offers its function with [`Methods::with`](crate::Methods::with); the holder of
/// an [`RRef`](crate::RRef) calls it with [`rpc_sync`](crate::RRef::rpc_sync) and the like.
pub struct ValueMethod<T, Argument, Output> {
    wire: Method<(Fetch, Argument), Output>,
    value: PhantomData<fn() -> T>,
}

impl<T, Argument, Output> ValueMethod<T, Argument, Output> {
    /// Names version 1 of the method. Names are compared exactly.
    pub const fn new(name: &'static str) -> Self {
        Self::with_version(name, 1)
    }

    /// Names another version of the method, with other types.
    pub const fn with_version(name: &'static str, version: u32) -> Self {
        Self {
            wire: Method::with_version(name, version),
            value: PhantomData,
        }
    }

    /// Returns the name.
    pub const fn name(&self) -> &'static str {
        self.wire.name()
    }

    /// Returns the method on the wire, for an argument by value or by reference.
    pub(crate) fn wire<A>(&self) -> Method<(Fetch, A), Output> {
        Method::with_version(self.wire.name(), self.wire.version())
    }
}

impl<T, Argument, Output> Clone for ValueMethod<T, Argument, Output> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, Argument, Output> Copy for ValueMethod<T, Argument, Output> {}

impl<T, Argument, Output> fmt::Debug for ValueMethod<T, Argument, Output> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value) = (self.name(), type_name::<T>());
        write!(formatter, "ValueMethod({name} of {value})")
    }
}
