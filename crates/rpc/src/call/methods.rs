//! The functions that a worker offers.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec;
use super::context::{CallContext, Place, inside};
use super::failure::Failure;
use super::method::Method;
use crate::error::{RemoteError, RpcError, RpcErrorKind};
use crate::payload::Payload;

/// What a function came to.
pub(crate) type Answer = Result<Payload, RpcError>;

/// A call of an async function on its way.
pub(crate) type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

type StartAsync = Box<dyn Fn(CallContext, Payload) -> Running + Send + Sync>;
type RunBlocking = Box<dyn Fn(CallContext, Payload) -> Answer + Send + Sync>;

/// How a function is run.
pub(crate) enum Handler {
    /// In steps, on threads that it must not hold up.
    Async(StartAsync),
    /// On a thread of its own.
    Blocking(RunBlocking),
}

/// The functions that a worker offers to others, by their names. Nothing else can be called.
///
/// ```
/// use rdzv_rpc::{CallContext, Method, Methods};
///
/// const ADD: Method<(i64, i64), i64> = Method::new("calculator.add");
/// const FACTORS: Method<u64, Vec<u64>> = Method::new("calculator.factors");
///
/// async fn add(_: CallContext, (a, b): (i64, i64)) -> Result<i64, String> {
///     a.checked_add(b).ok_or_else(|| "the sum does not fit".to_owned())
/// }
///
/// fn factors(_: CallContext, number: u64) -> Result<Vec<u64>, String> {
///     Ok((1..=number).filter(|factor| number % factor == 0).collect())
/// }
///
/// let methods = Methods::new()
///     .with(ADD, add)
///     .with_blocking(FACTORS, factors);
/// # assert_eq!(methods.names(), ["calculator.add", "calculator.factors"]);
/// ```
#[derive(Default)]
pub struct Methods {
    offered: BTreeMap<u64, Offered>,
}

struct Offered {
    name: &'static str,
    version: u32,
    handler: Handler,
}

impl Methods {
    /// No functions yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers an async function. It runs on threads that it shares with the connections: it must
    /// not block, nor compute for long; [`with_blocking`](Self::with_blocking) is for that. While
    /// it awaits something (calls to other workers included) it takes no thread.
    ///
    /// # Panics
    ///
    /// If a method of this name and version is offered already.
    #[must_use]
    pub fn with<Argument, Output, Function, Future_, Error>(
        self,
        method: Method<Argument, Output>,
        function: Function,
    ) -> Self
    where
        Argument: DeserializeOwned + Send + 'static,
        Output: Serialize + Send + 'static,
        Function: Fn(CallContext, Argument) -> Future_ + Clone + Send + Sync + 'static,
        Future_: Future<Output = Result<Output, Error>> + Send + 'static,
        Error: Failure,
    {
        let start: StartAsync = Box::new(move |context, payload| {
            let function = function.clone();
            Box::pin(async move {
                let trace = context.trace;
                let decoded = codec::decode_argument::<Argument>(&context, &payload);
                drop(payload);
                let argument = decoded?;
                let replied = context.clone();
                let started =
                    caught(|| inside(Place::Async, trace, || function(context, argument)))?;
                let output = in_steps(trace, started).await?;
                codec::encode_output(&replied, &output)
            })
        });
        self.offer(
            method.name(),
            method.version(),
            method.number(),
            Handler::Async(start),
        )
    }

    /// Offers a function that blocks or computes. Each call has a thread of its own; if
    /// `num_worker_threads` of the agent are busy, it waits for one.
    ///
    /// # Panics
    ///
    /// If a method of this name and version is offered already.
    #[must_use]
    pub fn with_blocking<Argument, Output, Function, Error>(
        self,
        method: Method<Argument, Output>,
        function: Function,
    ) -> Self
    where
        Argument: DeserializeOwned + Send + 'static,
        Output: Serialize + 'static,
        Function: Fn(CallContext, Argument) -> Result<Output, Error> + Send + Sync + 'static,
        Error: Failure,
    {
        let run: RunBlocking = Box::new(move |context, payload| {
            let trace = context.trace;
            let argument = codec::decode_argument::<Argument>(&context, &payload)?;
            drop(payload);
            let replied = context.clone();
            let result = caught(|| inside(Place::Blocking, trace, || function(context, argument)))?;
            let output = result.map_err(failed)?;
            codec::encode_output(&replied, &output)
        });
        self.offer(
            method.name(),
            method.version(),
            method.number(),
            Handler::Blocking(run),
        )
    }

    /// The names, in alphabetical order.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.offered.values().map(|offered| offered.name).collect();
        names.sort_unstable();
        names
    }

    /// Offers a function whose argument and result stay bytes.
    pub(crate) fn offer(
        mut self,
        name: &'static str,
        version: u32,
        number: u64,
        handler: Handler,
    ) -> Self {
        let offered = Offered {
            name,
            version,
            handler,
        };
        if let Some(other) = self.offered.insert(number, offered) {
            panic!(
                "the method {name}@{version} cannot be offered: {}@{} is offered already",
                other.name, other.version
            );
        }
        self
    }

    pub(crate) fn find(&self, number: u64) -> Option<(&'static str, &Handler)> {
        let offered = self.offered.get(&number)?;
        Some((offered.name, &offered.handler))
    }

    /// The names for somebody who asked for one that is not there.
    pub(crate) fn listed(&self) -> Vec<String> {
        let names = self.offered.values();
        names
            .filter(|offered| !offered.name.starts_with("rdzv."))
            .map(|offered| match offered.version {
                1 => offered.name.to_owned(),
                version => format!("{}@{version}", offered.name),
            })
            .take(100)
            .collect()
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.names()).finish()
    }
}

/// Goes through the future of the application step by step, each in the place that says so. A panic
/// in it is its failure.
async fn in_steps<Output, Error: Failure>(
    trace: u128,
    future: impl Future<Output = Result<Output, Error>>,
) -> Result<Output, RpcError> {
    let mut future = std::pin::pin!(future);
    let result = poll_fn(|context| {
        let step = caught(|| inside(Place::Async, trace, || future.as_mut().poll(context)));
        match step {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    });
    result.await?.map_err(failed)
}

/// The error of a function as that of a call.
fn failed(error: impl Failure) -> RpcError {
    remote(error.into_remote())
}

fn remote(remote: RemoteError) -> RpcError {
    let mut error = RpcError::new(RpcErrorKind::Remote, remote.to_string());
    error.remote = Some(Box::new(remote));
    error
}

/// Runs code of the application; a panic in it is its failure, and nobody else's.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, RpcError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        remote(RemoteError {
            type_name: "panic".to_owned(),
            message: panic_text(panic.as_ref()),
            ..RemoteError::default()
        })
    })
}

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}
