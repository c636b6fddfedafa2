//! One run of a function: its argument, references, steps and panics.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::channel::failure::FunctionFailure;
use crate::error::{RemoteError, RpcError};
use crate::payload::Payload;
use crate::runtime::codec::{self, Arrived};
use crate::runtime::core::CallContext;
use crate::service::code_kind::{CodeKind, inside};

/// Runs an async function: decodes, waits for references, and takes its steps.
pub(crate) async fn steps<Argument, Output, Function, Future_>(
    function: Function,
    context: CallContext,
    payload: Payload,
) -> Result<Output, RpcError>
where
    Argument: DeserializeOwned,
    Function: Fn(CallContext, Argument) -> Future_,
    Future_: Future<Output = Result<Output, RpcError>>,
{
    let trace = context.trace;
    let (argument, arrived) = decoded::<Argument>(&context, payload)?;
    arrived.await?;
    let started = caught(|| inside(CodeKind::Async, trace, || function(context, argument)))?;
    in_steps(trace, started).await
}

/// Runs a blocking function.
pub(crate) fn at_once<Argument: DeserializeOwned, Output>(
    function: &impl Fn(CallContext, Argument) -> Result<Output, RpcError>,
    context: CallContext,
    payload: Payload,
) -> Result<Output, RpcError> {
    let trace = context.trace;
    let (argument, mut arrived) = decoded::<Argument>(&context, payload)?;
    arrived.wait()?;
    caught(|| inside(CodeKind::Blocking, trace, || function(context, argument)))?
}

/// Decodes the argument, with code of the application.
pub(crate) fn decoded<Argument: DeserializeOwned>(
    context: &CallContext,
    payload: Payload,
) -> Result<(Argument, Arrived), RpcError> {
    let decoded = caught(|| codec::decode_argument(context, &payload));
    drop(payload);
    decoded?
}

/// Encodes the result, with code of the application.
pub(crate) fn encoded<Output: Serialize>(
    context: &CallContext,
    output: &Output,
) -> Result<Payload, RpcError> {
    caught(|| codec::encode_output(context, output))?
}

/// Polls the future of the application, with each step marked as async code.
/// A panic in a step becomes the error of the call.
async fn in_steps<Output>(
    trace: u128,
    future: impl Future<Output = Result<Output, RpcError>>,
) -> Result<Output, RpcError> {
    let mut future = std::pin::pin!(future);
    poll_fn(|context| {
        let step = caught(|| inside(CodeKind::Async, trace, || future.as_mut().poll(context)));
        step.unwrap_or_else(|panicked| Poll::Ready(Err(panicked)))
    })
    .await
}

pub(crate) fn failed(error: impl FunctionFailure) -> RpcError {
    RpcError::of_function(error.into_remote())
}

/// Runs code of the application, and turns a panic into an error.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, RpcError> {
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|panic| RpcError::of_function(RemoteError::panic(panic_text(panic.as_ref()))))
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}
