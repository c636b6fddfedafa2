//! Typed names of functions that workers offer.

use std::fmt;
use std::marker::PhantomData;

use rdzv_rpc_proto::frame::method_hash;

/// A function by its name, with the types of its argument and its result.
///
/// Both ends share it as a constant:
///
/// ```
/// use rdzv_rpc::Method;
///
/// const ADD: Method<(i64, i64), i64> = Method::new("calculator.add");
/// ```
pub struct Method<Argument, Output> {
    name: &'static str,
    version: u32,
    types: PhantomData<fn(Argument) -> Output>,
}

impl<Argument, Output> Method<Argument, Output> {
    /// Creates version 1 of a method. Names are compared exactly.
    pub const fn new(name: &'static str) -> Self {
        Self::with_version(name, 1)
    }

    /// Creates another version of the method, with other types.
    ///
    /// Change the version together with the types: a caller with another version then receives an
    /// error instead of wrong values.
    pub const fn with_version(name: &'static str, version: u32) -> Self {
        Self {
            name,
            version,
            types: PhantomData,
        }
    }

    /// Returns the name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the version.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Returns the hash that identifies the method on the wire.
    pub(crate) const fn number(&self) -> u64 {
        method_hash(self.name, self.version)
    }
}

impl<Argument, Output> Clone for Method<Argument, Output> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Argument, Output> Copy for Method<Argument, Output> {}

impl<Argument, Output> fmt::Debug for Method<Argument, Output> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Method({}@{})", self.name, self.version)
    }
}
