//! Functions that a worker offers: added by name, and found by hash.

use std::collections::BTreeMap;
use std::fmt;

use rdzv_rpc_proto::frame::method_hash;

use super::handler::{Handler, Offered};
use crate::rref::Keep;
use crate::runtime::core::{CallContext, MethodBody};
use crate::runtime::method::Method;
use crate::service::functions::Functions;

/// Functions that a worker offers to others, by name.
///
/// Other workers can call no other functions of the application.
///
/// ```
/// use rdzv_rpc::{CallContext, Method, Methods, blocking};
///
/// const ADD: Method<(i64, i64), i64> = Method::new("calculator.add");
/// const FACTORS: Method<u64, Vec<u64>> = Method::new("calculator.factors");
/// const CALLER: Method<(), String> = Method::new("calculator.caller");
///
/// async fn add((a, b): (i64, i64)) -> Result<i64, String> {
///     a.checked_add(b).ok_or_else(|| "the sum does not fit".to_owned())
/// }
///
/// fn factors(number: u64) -> Result<Vec<u64>, String> {
///     Ok((1..=number).filter(|factor| number % factor == 0).collect())
/// }
///
/// let methods = Methods::new()
///     .with(ADD, add)
///     .with(FACTORS, blocking(factors))
///     .with(CALLER, async |context: CallContext, ()| {
///         Ok::<_, String>(context.caller().name.to_string())
///     });
/// # assert_eq!(methods.names().len(), 3);
/// ```
#[derive(Clone, Default)]
pub struct Methods {
    offered: BTreeMap<u64, Offered>,
}

impl Methods {
    /// Creates an empty set of functions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers a function as a [`Method`] or a [`ValueMethod`](crate::ValueMethod).
    ///
    /// [`Handler`] lists the functions that can be offered. An async function runs on threads that
    /// it shares with the connections and with other async functions: it must neither block nor
    /// compute for long. Use [`blocking`](crate::blocking) for such functions. An async function
    /// occupies no thread while it awaits, for example, the reply of another worker.
    ///
    /// # Panics
    ///
    /// Panics if a method of this name and version is already offered.
    #[must_use]
    pub fn with<M, Marker>(self, method: M, handler: impl Handler<M, Marker>) -> Self {
        self.insert(handler.offer(method))
    }

    /// Returns the names, in alphabetical order.
    pub fn names(&self) -> Vec<&'static str> {
        let offered = self.offered.values();
        let mut names: Vec<_> = offered.map(|offered| offered.function.name).collect();
        names.sort_unstable();
        names
    }

    /// Offers version 1 of a function whose argument and result are raw bytes.
    pub(crate) fn offer(self, name: &'static str, body: MethodBody) -> Self {
        self.insert(Offered::new(Method::<(), ()>::new(name), body, None))
    }

    fn insert(mut self, offered: Offered) -> Self {
        let (name, version) = (offered.function.name, offered.function.version);
        let number = method_hash(name, version);
        if let Some(other) = self.offered.insert(number, offered) {
            panic!(
                "the method {name}@{version} cannot be offered: {}@{} is offered already",
                other.function.name, other.function.version
            );
        }
        self
    }

    /// Separates the functions from their result-keeping variants, both by hash.
    pub(crate) fn split(self) -> (Functions<CallContext>, BTreeMap<u64, Keep>) {
        let mut functions = BTreeMap::new();
        let mut keeps = BTreeMap::new();
        for (number, offered) in self.offered {
            functions.insert(number, offered.function);
            keeps.extend(offered.keep.map(|keep| (number, keep)));
        }
        (Functions(functions), keeps)
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.names()).finish()
    }
}
