//! Values to messages and back, as the agent at hand sends and receives them.

use serde::Serialize;
use serde::de::DeserializeOwned;

use rdzv_core::rpc::worker::WorkerInfo;

use super::context::CallContext;
use crate::agent::core::Core;
use crate::error::RpcError;
use crate::message::{Incoming, Outgoing, decode, encode};
use crate::payload::Payload;

/// The argument of a call to this worker.
pub(crate) fn encode_argument<T: Serialize + ?Sized>(
    core: &Core,
    to: &WorkerInfo,
    argument: &T,
) -> Result<Payload, RpcError> {
    let view = core.view();
    let map = view.as_ref().and_then(|view| view.device_map(&to.name));
    let mut outgoing = Outgoing::request(to).with_device_map(map);
    encode(argument, &mut outgoing)
}

/// The argument of a call that has come.
pub(crate) fn decode_argument<T: DeserializeOwned>(
    context: &CallContext,
    payload: &Payload,
) -> Result<T, RpcError> {
    let core = context.agent.core();
    let mut incoming = Incoming::new(&context.caller, &core.backend);
    decode(payload, &mut incoming)
}

/// The result of a call, for the worker that made it.
pub(crate) fn encode_output<T: Serialize + ?Sized>(
    context: &CallContext,
    output: &T,
) -> Result<Payload, RpcError> {
    let to = &context.caller;
    let view = context.agent.core().view();
    let Some(view) = view else {
        return encode(output, &mut Outgoing::response(to));
    };
    let mut outgoing = Outgoing::response(to)
        .with_device_map(view.reverse_map(&to.name))
        .with_devices(view.devices());
    encode(output, &mut outgoing)
}

/// The result of a call that this worker answered.
pub(crate) fn decode_output<T: DeserializeOwned>(
    core: &Core,
    from: &WorkerInfo,
    payload: &Payload,
) -> Result<T, RpcError> {
    let mut incoming = Incoming::new(from, &core.backend);
    decode(payload, &mut incoming)
}
