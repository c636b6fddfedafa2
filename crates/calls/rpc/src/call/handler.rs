//! Function types that a worker can offer: async, blocking, deferred or kept.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::channel::failure::FunctionFailure;
use crate::channel::slot::{Promise, Slot};
use crate::error::RpcError;
use crate::payload::Then;
use crate::rref::{self, Keep, ValueMethod};
use crate::runtime::core::{CallContext, MethodBody};
use crate::runtime::method::Method;
use crate::runtime::run::{at_once, caught, decoded, encoded, failed, steps};
use crate::service::functions::{self, Respond};

/// Type that a method can have as its argument.
pub trait Argument: DeserializeOwned + Send + 'static {}

impl<T: DeserializeOwned + Send + 'static> Argument for T {}

/// Type that a method can have as its result.
pub trait Output: Serialize + Send + Sync + 'static {}

impl<T: Serialize + Send + Sync + 'static> Output for T {}

/// A function that a worker can offer as the method `M`.
///
/// The compiler infers the `Marker`.
///
/// | method | async function | inside [`blocking`] |
/// |---|---|---|
/// | `Method<A, O>` | `async fn(A) -> Result<O, E>` | `fn(A) -> Result<O, E>` |
/// | `ValueMethod<T, A, O>` | `async fn(Arc<T>, A) -> Result<O, E>` | `fn(Arc<T>, A) -> Result<O, E>` |
///
/// Each function can accept a [`CallContext`] as an additional first argument. The error may be of
/// any [`FunctionFailure`] type. An async function in [`kept`] is a handler of `Method<A, O>`; the
/// type of its result need not be serialisable. A `fn(CallContext, A, Responder<O>)` in
/// [`deferred`] is also a handler of `Method<A, O>`. All calls of a `ValueMethod` for one reference
/// share one value, so its mutable parts need a lock or an atomic.
#[diagnostic::on_unimplemented(
    message = "this function cannot be offered as {M}",
    note = "specify the types of a closure's arguments, and wrap a function that is not async in \
            `blocking`"
)]
pub trait Handler<M, Marker> {
    /// Returns the function in the form in which a worker calls it.
    fn offer(self, method: M) -> Offered;
}

/// A function with the name and the version of its method.
#[derive(Clone)]
pub struct Offered {
    pub(super) function: functions::Function<CallContext>,
    /// Variant that keeps its result on this worker instead of sending it.
    pub(super) keep: Option<Keep>,
}

impl Offered {
    /// Offers a function under the name and the version of a method.
    pub(super) fn new<A, O>(method: Method<A, O>, body: MethodBody, keep: Option<Keep>) -> Self {
        let function = functions::Function {
            name: method.name(),
            version: method.version(),
            body,
        };
        Self { function, keep }
    }
}

impl fmt::Debug for Offered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let functions::Function { name, version, .. } = self.function;
        write!(formatter, "Offered({name}@{version})")
    }
}

/// A function with these arguments, optionally after a [`CallContext`].
pub trait Function<Arguments, Marker>: Send + Sync + 'static {
    /// Type that the function returns: a result, or a future of a result.
    type Returned;

    /// Calls the function.
    fn call(&self, context: CallContext, arguments: Arguments) -> Self::Returned;
}

impl<F, A, R> Function<(A,), fn(A)> for F
where
    F: Fn(A) -> R + Send + Sync + 'static,
{
    type Returned = R;

    fn call(&self, _: CallContext, (argument,): (A,)) -> R {
        self(argument)
    }
}

impl<F, A, R> Function<(A,), fn(CallContext, A)> for F
where
    F: Fn(CallContext, A) -> R + Send + Sync + 'static,
{
    type Returned = R;

    fn call(&self, context: CallContext, (argument,): (A,)) -> R {
        self(context, argument)
    }
}

impl<F, T, A, R> Function<(Arc<T>, A), fn(Arc<T>, A)> for F
where
    F: Fn(Arc<T>, A) -> R + Send + Sync + 'static,
{
    type Returned = R;

    fn call(&self, _: CallContext, (value, argument): (Arc<T>, A)) -> R {
        self(value, argument)
    }
}

impl<F, T, A, R> Function<(Arc<T>, A), fn(CallContext, Arc<T>, A)> for F
where
    F: Fn(CallContext, Arc<T>, A) -> R + Send + Sync + 'static,
{
    type Returned = R;

    fn call(&self, context: CallContext, (value, argument): (Arc<T>, A)) -> R {
        self(context, value, argument)
    }
}

/// A function in [`blocking`].
#[derive(Debug, Clone)]
pub struct Blocking<F>(F);

/// A function in [`kept`].
#[derive(Debug, Clone)]
pub struct KeptHere<F>(F);

/// Marks a function that blocks or computes.
///
/// Each call runs on a separate thread. If `num_worker_threads` calls are running, the next call
/// waits for a thread, unless a running function of the same trace waits for a call.
pub fn blocking<F>(function: F) -> Blocking<F> {
    Blocking(function)
}

/// Marks an async function whose result is only kept.
///
/// [`RpcAgent::remote`](crate::RpcAgent::remote) can call it. The result stays on this worker, and
/// callers use it through [`ValueMethod`]s. The result need not be serialisable.
pub fn kept<F>(function: F) -> KeptHere<F> {
    KeptHere(function)
}

/// A function in [`deferred`].
#[derive(Debug, Clone)]
pub struct Deferred<F>(F);

/// Marks a function that answers its calls later and must not block.
///
/// Any thread can answer a call through its [`Responder`]. The agent has no threads for these
/// calls, so `num_worker_threads` does not limit how many of them run at the same time.
///
/// To make nested calls as part of such a call, make the calls in [`CallContext::inside`].
pub fn deferred<F>(function: F) -> Deferred<F> {
    Deferred(function)
}

/// Handle that answers one call of a function in [`deferred`].
///
/// The call fails if the responder is dropped without an answer.
pub struct Responder<O> {
    context: CallContext,
    respond: Then<Respond>,
    output: PhantomData<fn(O)>,
}

impl<O> fmt::Debug for Responder<O> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Responder({:?})", self.context)
    }
}

impl<O: Serialize> Responder<O> {
    /// Answers the call.
    /// The caller receives an error with its kind and its message.
    pub fn respond(self, result: Result<O, RpcError>) {
        let answer = result.and_then(|output| encoded(&self.context, &output));
        self.respond.go_on(answer);
    }
}

/// Marker type for the kind of a handler; never instantiated.
#[derive(Debug)]
pub struct Recognised<Kind, Function, Returned, Error>(
    PhantomData<fn(Kind, Function, Returned, Error)>,
);

impl<F, A: Argument, O: Output, E: FunctionFailure, R, C>
    Handler<Method<A, O>, Recognised<(), C, R, E>> for F
where
    F: Function<(A,), C, Returned = R>,
    R: Future<Output = Result<O, E>> + Send + 'static,
{
    fn offer(self, method: Method<A, O>) -> Offered {
        in_steps(method, move |context, argument| {
            let future = self.call(context, (argument,));
            async move { future.await.map_err(failed) }
        })
    }
}

impl<F, T, A: Argument, O: Output, E: FunctionFailure, R, C>
    Handler<ValueMethod<T, A, O>, Recognised<(), C, R, E>> for F
where
    F: Function<(Arc<T>, A), C, Returned = R>,
    T: Send + Sync + 'static,
    R: Future<Output = Result<O, E>> + Send + 'static,
{
    fn offer(self, method: ValueMethod<T, A, O>) -> Offered {
        let function = Arc::new(self);
        let wire = method.wire::<A>();
        in_steps(wire, move |context: CallContext, (question, argument)| {
            let function = Arc::clone(&function);
            async move {
                let value = rref::value(context.agent.core(), question).await?;
                let future = function.call(context, (value, argument));
                future.await.map_err(failed)
            }
        })
    }
}

impl<F, A: Argument, O: Output, E: FunctionFailure, C>
    Handler<Method<A, O>, Recognised<Blocking<()>, C, O, E>> for Blocking<F>
where
    F: Function<(A,), C, Returned = Result<O, E>>,
{
    fn offer(self, method: Method<A, O>) -> Offered {
        on_a_thread(method, move |context, argument| {
            self.0.call(context, (argument,)).map_err(failed)
        })
    }
}

impl<F, T, A: Argument, O: Output, E: FunctionFailure, C>
    Handler<ValueMethod<T, A, O>, Recognised<Blocking<()>, C, O, E>> for Blocking<F>
where
    F: Function<(Arc<T>, A), C, Returned = Result<O, E>>,
    T: Send + Sync + 'static,
{
    fn offer(self, method: ValueMethod<T, A, O>) -> Offered {
        let wire = method.wire::<A>();
        on_a_thread(wire, move |context: CallContext, (question, argument)| {
            let value = rref::wait_for_value(context.agent.core(), question, context.deadline)?;
            self.0.call(context, (value, argument)).map_err(failed)
        })
    }
}

impl<F, A: Argument, O: Output> Handler<Method<A, O>, Recognised<Deferred<()>, (), O, ()>>
    for Deferred<F>
where
    F: Fn(CallContext, A, Responder<O>) + Send + Sync + 'static,
{
    fn offer(self, method: Method<A, O>) -> Offered {
        let function = Arc::new(self.0);
        let hand_over = move |context: CallContext, payload, respond| {
            let responder = Responder {
                context: context.clone(),
                respond: Then::new(respond),
                output: PhantomData,
            };
            match decoded::<A>(&context, payload) {
                Err(error) => responder.respond(Err(error)),
                Ok((argument, arrived)) if arrived.is_known() => {
                    // A panic drops the responder, which answers the call.
                    let _ = caught(|| function(context, argument, responder));
                }
                Ok((argument, arrived)) => {
                    let function = Arc::clone(&function);
                    let core = Arc::clone(context.agent.core());
                    core.executor.spawn(async move {
                        match arrived.await {
                            Ok(()) => function(context, argument, responder),
                            Err(error) => responder.respond(Err(error)),
                        }
                    });
                }
            }
        };
        Offered::new(method, MethodBody::Deferred(Arc::new(hand_over)), None)
    }
}

impl<F, A: Argument, O, E: FunctionFailure, R, C>
    Handler<Method<A, O>, Recognised<KeptHere<()>, C, R, E>> for KeptHere<F>
where
    F: Function<(A,), C, Returned = R>,
    O: Send + Sync + 'static,
    R: Future<Output = Result<O, E>> + Send + 'static,
{
    fn offer(self, method: Method<A, O>) -> Offered {
        let function = self.0;
        let made = move |context, argument| {
            let future = function.call(context, (argument,));
            async move { future.await.map_err(failed) }
        };
        let name = method.name();
        let start = move |_, _| {
            let text = format!("the result of {name} cannot be sent: call {name} with remote()");
            Box::pin(async move { Err(RpcError::invalid(text)) }) as _
        };
        let keep = keep(Arc::new(made), rref::Kept::only_here);
        Offered::new(method, MethodBody::Async(Arc::new(start)), Some(keep))
    }
}

fn in_steps<A: Argument, O: Output, F>(
    method: Method<A, O>,
    function: impl Fn(CallContext, A) -> F + Send + Sync + 'static,
) -> Offered
where
    F: Future<Output = Result<O, RpcError>> + Send + 'static,
{
    let function = Arc::new(function);
    let kept = Arc::clone(&function);
    let start = move |context: CallContext, payload| {
        let function = Arc::clone(&function);
        Box::pin(async move {
            let replied = context.clone();
            let output = steps(&*function, context, payload).await?;
            encoded(&replied, &output)
        }) as _
    };
    let keep = keep(kept, rref::Kept::new);
    Offered::new(method, MethodBody::Async(Arc::new(start)), Some(keep))
}

fn on_a_thread<A: Argument, O: Output>(
    method: Method<A, O>,
    function: impl Fn(CallContext, A) -> Result<O, RpcError> + Send + Sync + 'static,
) -> Offered {
    let function = Arc::new(function);
    let kept = Arc::clone(&function);
    let run = move |context: CallContext, payload| {
        let replied = context.clone();
        let output = at_once(function.as_ref(), context, payload)?;
        encoded(&replied, &output)
    };
    let keep: Keep = Arc::new(move |context, payload| {
        let function = Arc::clone(&kept);
        let slot = Arc::new(Slot::default());
        let promise = Promise::new(&slot);
        let core = Arc::clone(context.agent.core());
        core.executor.spawn_blocking(context.trace, move || {
            let output = at_once(function.as_ref(), context, payload);
            promise.keep(output.map(rref::Kept::new));
        });
        Box::pin(poll_fn(move |context| slot.poll(context)))
    });
    Offered::new(method, MethodBody::Blocking(Arc::new(run)), Some(keep))
}

/// Returns a variant of an async function that keeps its result.
fn keep<A: Argument, O: 'static, F>(
    function: Arc<impl Fn(CallContext, A) -> F + Send + Sync + 'static>,
    kept: fn(O) -> rref::Kept,
) -> Keep
where
    F: Future<Output = Result<O, RpcError>> + Send + 'static,
{
    Arc::new(move |context, payload| {
        let function = Arc::clone(&function);
        Box::pin(async move { Ok(kept(steps(&*function, context, payload).await?)) })
    })
}
