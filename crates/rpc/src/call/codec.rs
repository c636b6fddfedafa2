//! Values to messages and back, as the agent at hand sends and receives them.

use std::sync::Arc;

use rdzv_rpc_proto::rref::ForkId;
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::CallContext;
use crate::agent::core::{Core, Member};
use crate::error::RpcError;
use crate::message::{Incoming, Outgoing, decode, encode};
use crate::payload::Payload;
use crate::rref::{Adopting, Arrived, Forking};

/// The argument of a call to this worker, and the references in it.
pub(crate) fn encode_argument<T: Serialize + ?Sized>(
    core: &Core,
    to: &Member,
    argument: &T,
) -> Result<(Payload, Vec<ForkId>), RpcError> {
    let view = core.view();
    let map = view
        .as_ref()
        .and_then(|view| view.device_map(&to.info.name));
    let mut forking = Forking::new(core, to.holder());
    let mut outgoing = Outgoing::request(&to.info)
        .with_device_map(map)
        .with_references(&mut forking);
    let payload = encode(argument, &mut outgoing)?;
    Ok((payload, forking.into_forks()))
}

/// The argument of a call that has come, and what has to be known of the references in it before a
/// function may use them.
pub(crate) fn decode_argument<T: DeserializeOwned>(
    context: &CallContext,
    payload: &Payload,
) -> Result<(T, Arrived), RpcError> {
    let core = context.agent.core();
    let mut adopting = Adopting::new(core, &context.caller);
    let mut incoming = Incoming::new(&context.caller, &core.backend).with_references(&mut adopting);
    let argument = decode(payload, &mut incoming)?;
    Ok((argument, adopting.arrived()))
}

/// The result of a call, for the worker that made it.
pub(crate) fn encode_output<T: Serialize + ?Sized>(
    context: &CallContext,
    output: &T,
) -> Result<Payload, RpcError> {
    let core = context.agent.core();
    let to = &context.caller;
    let mut forking = Forking::new(core, context.holder());
    let view = core.view();
    let mut outgoing = Outgoing::response(to).with_references(&mut forking);
    if let Some(view) = &view {
        outgoing = outgoing
            .with_device_map(view.reverse_map(&to.name))
            .with_devices(view.devices());
    }
    let payload = encode(output, &mut outgoing)?;
    forking.into_forks();
    Ok(payload)
}

/// The result of a call that this worker answered.
pub(crate) fn decode_output<T: DeserializeOwned>(
    core: &Arc<Core>,
    from: &WorkerInfo,
    payload: &Payload,
) -> Result<T, RpcError> {
    let mut adopting = Adopting::new(core, from);
    let mut incoming = Incoming::new(from, &core.backend).with_references(&mut adopting);
    decode(payload, &mut incoming)
}
