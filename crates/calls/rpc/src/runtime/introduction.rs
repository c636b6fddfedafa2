//! Introduction of device memory to other workers, before it is lent.

use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::rref::Member as Holder;
use rdzv_rpc_proto::tensor::DataType;

use crate::error::RpcError;
use crate::runtime::call::{CallOptions, Destination};
use crate::runtime::codec::decode_argument;
use crate::runtime::core::{Core, MethodBody, RpcAgent};
use crate::runtime::member::Member;
use crate::runtime::method::Method;
use crate::tensor::{Storage, Tensor, TensorMeta};

/// Method that shows a card; the result is why the worker cannot use it.
const MEET: Method<Tensor, Option<String>> = Method::new("rdzv.device.meet");

/// Returns the method that every agent offers for device memory of its callers.
pub(crate) fn offered() -> (&'static str, MethodBody) {
    let meet = MethodBody::Async(Arc::new(|context, payload| {
        Box::pin(async move {
            let (card, _) = decode_argument::<Tensor>(&context, &payload)?;
            let backend = &context.agent.core().backend;
            let from = Holder::new(context.caller.id, context.caller_incarnation);
            let met = match (backend.lender(), card.storage().host_bytes()) {
                (Some(lender), Some(card)) => lender.meet(card, from),
                _ => Err("it has no device backend that borrows memory".to_owned()),
            };
            crate::runtime::codec::encode_output(&context, &met.err())
        })
    }));
    (MEET.name(), meet)
}

/// Shows cards to a worker; the lender gets the answers.
pub(crate) fn introduce(core: &Arc<Core>, to: &Member, cards: Vec<Bytes>) {
    for card in cards {
        let agent = RpcAgent::borrowed(Arc::clone(core));
        let holder = to.holder();
        core.executor.spawn(async move {
            let answer = show(&agent, holder, &card).await;
            if let Some(lender) = agent.core().backend.lender() {
                lender.met(&card, holder, answer);
            }
        });
    }
}

async fn show(agent: &RpcAgent, to: Holder, card: &Bytes) -> Result<(), String> {
    let shown = || -> Result<Tensor, RpcError> {
        let meta = TensorMeta::contiguous(DataType::U8, vec![card.len()])?;
        Ok(Tensor::new(Storage::unmapped(card.clone()), meta)?)
    };
    let tensor = shown().map_err(|error| error.to_string())?;
    let call = agent.call_with(
        CallOptions::default(),
        Destination::Id(to.id),
        MEET,
        &tensor,
    );
    match call.await {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(reason),
        Err(error) => Err(error.to_string()),
    }
}
