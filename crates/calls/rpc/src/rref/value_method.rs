//! Methods whose first parameter is the value behind a reference.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use rdzv_rpc_proto::rref::Fetch;

use crate::runtime::method::Method;

/// Method on values of type `T`, identified by its name and version.
///
/// Define it as a constant that the caller and the owner share:
///
/// ```
/// use std::sync::atomic::AtomicU64;
///
/// use rdzv_rpc::ValueMethod;
///
/// const ADD: ValueMethod<AtomicU64, u64, u64> = ValueMethod::new("counter.add");
/// ```
///
/// The owner registers a function for it with [`Methods::with`](crate::Methods::with). The holder
/// of an [`RRef`](crate::RRef) calls it, for example with [`rpc_sync`](crate::RRef::rpc_sync).
pub struct ValueMethod<T, Argument, Output> {
    wire: Method<(Fetch, Argument), Output>,
    value: PhantomData<fn() -> T>,
}

impl<T, Argument, Output> ValueMethod<T, Argument, Output> {
    /// Creates version 1 of the method with this name. Names are compared exactly.
    pub const fn new(name: &'static str) -> Self {
        Self::with_version(name, 1)
    }

    /// Creates another version of the method, with other types.
    pub const fn with_version(name: &'static str, version: u32) -> Self {
        Self {
            wire: Method::with_version(name, version),
            value: PhantomData,
        }
    }

    /// Returns the name of the method.
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
