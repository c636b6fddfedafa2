//! The functions that a worker offers: how they are added, and found by their number.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use rdzv_rpc_proto::frame::method_hash;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec;
use super::context::CallContext;
use super::failure::Failure;
use super::method::Method;
use super::run::{at_once, failed, steps};
use super::slot::{Promise, Slot};
use crate::error::RpcError;
use crate::payload::Payload;
use crate::rref::{self, Keep, Kept, ValueMethod};

/// What a function came to.
pub(crate) type Answer = Result<Payload, RpcError>;

/// A call of an async function on its way.
pub(crate) type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

type StartAsync = Arc<dyn Fn(CallContext, Payload) -> Running + Send + Sync>;
type RunBlocking = Arc<dyn Fn(CallContext, Payload) -> Answer + Send + Sync>;

/// How a function is run.
#[derive(Clone)]
pub(crate) enum Handler {
    /// In steps, on threads that it must not hold up.
    Async(StartAsync),
    /// On a thread of its own.
    Blocking(RunBlocking),
}

/// A type that methods can have as their argument.
pub trait Argument: DeserializeOwned + Send + 'static {}

impl<T: DeserializeOwned + Send + 'static> Argument for T {}

/// A type that methods can have as their result.
pub trait Output: Serialize + Send + Sync + 'static {}

impl<T: Serialize + Send + Sync + 'static> Output for T {}

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
#[derive(Clone, Default)]
pub struct Methods {
    offered: BTreeMap<u64, Offered>,
}

#[derive(Clone)]
struct Offered {
    name: &'static str,
    version: u32,
    handler: Handler,
    /// How its result is kept here instead of sent.
    keep: Option<Keep>,
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
    pub fn with<A: Argument, O: Output, F, E: Failure>(
        self,
        method: Method<A, O>,
        function: impl Fn(CallContext, A) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<O, E>> + Send + 'static,
    {
        self.with_async(method, move |context, argument| {
            let future = function(context, argument);
            async move { future.await.map_err(failed) }
        })
    }

    /// Offers an async method of values: see [`ValueMethod`]. The value is shared with other calls;
    /// what changes in it needs a lock or an atomic.
    ///
    /// # Panics
    ///
    /// If a method of this name and version is offered already.
    #[must_use]
    pub fn with_value<T, A: Argument, O: Output, F, E: Failure>(
        self,
        method: ValueMethod<T, A, O>,
        function: impl Fn(CallContext, Arc<T>, A) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        T: Send + Sync + 'static,
        F: Future<Output = Result<O, E>> + Send + 'static,
    {
        let wire = method.wire::<A>();
        self.with_async(wire, move |context: CallContext, (question, argument)| {
            let function = function.clone();
            async move {
                let value = rref::value(context.agent.core(), question).await?;
                function(context, value, argument).await.map_err(failed)
            }
        })
    }

    /// Offers an async function whose result is only kept: it can be made with
    /// [`RpcAgent::remote`](crate::RpcAgent::remote), stays on this worker, and is used through
    /// [`ValueMethod`]s. It need not be possible to send it.
    ///
    /// # Panics
    ///
    /// If a method of this name and version is offered already.
    #[must_use]
    pub fn with_kept<A: Argument, O, F, E: Failure>(
        self,
        method: Method<A, O>,
        function: impl Fn(CallContext, A) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        O: Send + Sync + 'static,
        F: Future<Output = Result<O, E>> + Send + 'static,
    {
        let made = move |context, argument| {
            let future = function(context, argument);
            async move { future.await.map_err(failed) }
        };
        let keep = keep(made, Kept::only_here);
        let name = method.name();
        let start: StartAsync = Arc::new(move |_, _| {
            let text = format!("the result of {name} stays where it is: call it with remote()");
            Box::pin(async move { Err(RpcError::invalid(text)) })
        });
        self.insert(name, method.version(), Handler::Async(start), Some(keep))
    }

    fn with_async<A: Argument, O: Output, F>(
        self,
        method: Method<A, O>,
        function: impl Fn(CallContext, A) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<O, RpcError>> + Send + 'static,
    {
        let keep = keep(function.clone(), Kept::new);
        let start: StartAsync = Arc::new(move |context, payload| {
            let function = function.clone();
            Box::pin(async move {
                let replied = context.clone();
                let output = steps(function, context, payload).await?;
                codec::encode_output(&replied, &output)
            })
        });
        let (name, version) = (method.name(), method.version());
        self.insert(name, version, Handler::Async(start), Some(keep))
    }

    /// Offers a function that blocks or computes. Each call has a thread of its own; if
    /// `num_worker_threads` of the agent are busy, it waits for one.
    ///
    /// # Panics
    ///
    /// If a method of this name and version is offered already.
    #[must_use]
    pub fn with_blocking<A: Argument, O: Output, E: Failure>(
        self,
        method: Method<A, O>,
        function: impl Fn(CallContext, A) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self {
        self.with_thread(method, move |context, argument| {
            function(context, argument).map_err(failed)
        })
    }

    /// Offers a method of values that blocks or computes: see [`ValueMethod`].
    ///
    /// # Panics
    ///
    /// If a method of this name and version is offered already.
    #[must_use]
    pub fn with_blocking_value<T, A: Argument, O: Output, E: Failure>(
        self,
        method: ValueMethod<T, A, O>,
        function: impl Fn(CallContext, Arc<T>, A) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self
    where
        T: Send + Sync + 'static,
    {
        let wire = method.wire::<A>();
        self.with_thread(wire, move |context: CallContext, (question, argument)| {
            let value = rref::wait_for_value(context.agent.core(), question, context.deadline)?;
            function(context, value, argument).map_err(failed)
        })
    }

    fn with_thread<A: Argument, O: Output>(
        self,
        method: Method<A, O>,
        function: impl Fn(CallContext, A) -> Result<O, RpcError> + Send + Sync + 'static,
    ) -> Self {
        let function = Arc::new(function);
        let kept = Arc::clone(&function);
        let run: RunBlocking = Arc::new(move |context, payload| {
            let replied = context.clone();
            let output = at_once(function.as_ref(), context, payload)?;
            codec::encode_output(&replied, &output)
        });
        let keep: Keep = Arc::new(move |context, payload| {
            let function = Arc::clone(&kept);
            let slot = Arc::new(Slot::default());
            let promise = Promise::new(&slot);
            let core = Arc::clone(context.agent.core());
            core.spawn_blocking(move || {
                let output = at_once(function.as_ref(), context, payload);
                promise.keep(output.map(Kept::new));
            });
            Box::pin(poll_fn(move |context| slot.poll(context)))
        });
        let (name, version) = (method.name(), method.version());
        self.insert(name, version, Handler::Blocking(run), Some(keep))
    }

    /// The names, in alphabetical order.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.offered.values().map(|offered| offered.name).collect();
        names.sort_unstable();
        names
    }

    /// Offers version 1 of a function whose argument and result stay bytes.
    pub(crate) fn offer(self, name: &'static str, handler: Handler) -> Self {
        self.insert(name, 1, handler, None)
    }

    fn insert(
        mut self,
        name: &'static str,
        version: u32,
        handler: Handler,
        keep: Option<Keep>,
    ) -> Self {
        let number = method_hash(name, version);
        let offered = Offered {
            name,
            version,
            handler,
            keep,
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

    /// The function that keeps the result of a method instead of sending it, if there is such a method.
    pub(crate) fn keep(&self, number: u64) -> Option<&Keep> {
        self.offered.get(&number)?.keep.as_ref()
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

/// Keeps the result of an async function instead of sending it.
fn keep<A: Argument, O: 'static, F>(
    function: impl Fn(CallContext, A) -> F + Clone + Send + Sync + 'static,
    kept: fn(O) -> Kept,
) -> Keep
where
    F: Future<Output = Result<O, RpcError>> + Send + 'static,
{
    Arc::new(move |context, payload| {
        let function = function.clone();
        Box::pin(async move { Ok(kept(steps(function, context, payload).await?)) })
    })
}

impl fmt::Debug for Methods {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.names()).finish()
    }
}
