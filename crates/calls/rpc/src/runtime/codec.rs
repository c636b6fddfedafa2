//! Conversion of values to messages and back, for one agent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rdzv_rpc_proto::rref::{ForkId, Input, Member as Holder};
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::RpcError;
use crate::message::{
    AdoptReferences, ForkReferences, Incoming, Lending, LocalReference, Outgoing, decode, encode,
};
use crate::payload::Payload;
use crate::runtime::core::CallContext;
use crate::runtime::core::{Confirmation, Core};
use crate::runtime::member::Member;

/// Encodes the argument of a call; also returns the references in it.
pub(crate) fn encode_argument<T: Serialize + ?Sized>(
    core: &Arc<Core>,
    to: &Member,
    argument: &T,
) -> Result<(Payload, Vec<ForkId>), RpcError> {
    let view = core.view();
    let map = view
        .as_ref()
        .and_then(|view| view.device_map(&to.info.name));
    let mut forking = Forking::new(core, to.holder());
    let mut cards = Vec::new();
    let mut outgoing = Outgoing::request(&to.info)
        .with_device_map(map)
        .with_lending(map.and_then(|_| lending(core, to, &mut cards)))
        .with_references(&mut forking);
    let payload = encode(argument, &mut outgoing)?;
    introduce(core, to, cards);
    Ok((payload, forking.into_forks()))
}

/// Returns the lender of device memory to a member on this host.
fn lending<'a>(
    core: &'a Core,
    to: &Member,
    cards: &'a mut Vec<bytes::Bytes>,
) -> Option<Lending<'a>> {
    let lender = core.backend.lender()?;
    core.is_here(to).then_some(Lending {
        lender,
        to: to.holder(),
        cards,
    })
}

fn introduce(core: &Arc<Core>, to: &Member, cards: Vec<bytes::Bytes>) {
    if let Some(introduce) = core.introduce.get().filter(|_| !cards.is_empty()) {
        introduce(core, to, cards);
    }
}

/// Decodes the argument of an incoming call.
/// Also returns the confirmations that must arrive before a function may use the references.
pub(crate) fn decode_argument<T: DeserializeOwned>(
    context: &CallContext,
    payload: &Payload,
) -> Result<(T, Arrived), RpcError> {
    let core = context.agent.core();
    let mut adopting = Adopting::new(core, &context.caller);
    let mut incoming = Incoming::new(&context.caller, &core.backend)
        .of_incarnation(context.caller_incarnation)
        .with_references(&mut adopting);
    let argument = decode(payload, &mut incoming)?;
    Ok((argument, adopting.arrived()))
}

/// Encodes the result of a call for its caller.
pub(crate) fn encode_output<T: Serialize + ?Sized>(
    context: &CallContext,
    output: &T,
) -> Result<Payload, RpcError> {
    let core = context.agent.core();
    let to = &context.caller;
    let mut forking = Forking::new(core, context.holder());
    let view = core.view();
    let members = core.members();
    let caller = members
        .get(&to.id)
        .filter(|member| member.incarnation == context.caller_incarnation);
    let mut cards = Vec::new();
    let mut outgoing = Outgoing::response(to).with_references(&mut forking);
    if let Some(view) = &view {
        let map = view.reverse_map(&to.name);
        let caller = map.and(caller);
        outgoing = outgoing
            .with_device_map(map)
            .with_devices(view.devices())
            .with_lending(caller.and_then(|caller| lending(core, caller, &mut cards)));
    }
    let payload = encode(output, &mut outgoing)?;
    if let Some(caller) = caller {
        introduce(core, caller, cards);
    }
    forking.into_forks();
    Ok(payload)
}

/// Decodes the result of a call that this worker made.
pub(crate) fn decode_output<T: DeserializeOwned>(
    core: &Arc<Core>,
    from: &WorkerInfo,
    payload: &Payload,
) -> Result<T, RpcError> {
    let mut adopting = Adopting::new(core, from);
    let incarnation = core.members().get(&from.id).map(|from| from.incarnation);
    let mut incoming = Incoming::new(from, &core.backend)
        .of_incarnation(incarnation.unwrap_or_default())
        .with_references(&mut adopting);
    decode(payload, &mut incoming)
}

/// Forks the references of one outgoing message.
pub(crate) struct Forking<'a> {
    core: &'a Arc<Core>,
    to: Holder,
    forks: Vec<ForkId>,
}

impl<'a> Forking<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, to: Holder) -> Self {
        Self {
            core,
            to,
            forks: Vec::new(),
        }
    }

    /// Returns the forks, once the finished message contains them.
    pub(crate) fn into_forks(mut self) -> Vec<ForkId> {
        std::mem::take(&mut self.forks)
    }
}

impl Drop for Forking<'_> {
    fn drop(&mut self) {
        // Forks that are still here belong to a message that was never built.
        not_sent(self.core, std::mem::take(&mut self.forks));
    }
}

pub(crate) fn not_sent(core: &Arc<Core>, forks: Vec<ForkId>) {
    for fork in forks {
        core.references.handle(core, Input::NotSent(fork));
    }
}

/// Reports that the call with these forks failed; the message may have arrived.
pub(crate) fn strayed(core: &Arc<Core>, forks: &[ForkId]) {
    for fork in forks {
        core.references.handle(core, Input::Strayed(*fork));
    }
}

impl ForkReferences for Forking<'_> {
    fn fork(&mut self, local: &LocalReference) -> Result<Vec<u8>, RpcError> {
        let (fork, bytes) = self.core.references.fork(self.core, self.to, local)?;
        self.forks.push(fork);
        Ok(bytes)
    }
}

/// Adopts the references of one incoming message.
pub(crate) struct Adopting<'a> {
    core: &'a Arc<Core>,
    source: &'a WorkerInfo,
    arrived: Arrived,
}

/// References that arrived; their owners may not have confirmed all of them.
#[derive(Default)]
pub(crate) struct Arrived {
    pending: Vec<Confirmation>,
}

impl<'a> Adopting<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, source: &'a WorkerInfo) -> Self {
        Self {
            core,
            source,
            arrived: Arrived::default(),
        }
    }

    /// Returns the confirmations to wait for.
    pub(crate) fn arrived(self) -> Arrived {
        self.arrived
    }
}

impl AdoptReferences for Adopting<'_> {
    fn adopt(&mut self, fork: &[u8]) -> Result<LocalReference, RpcError> {
        let references = &self.core.references;
        let (adopted, unconfirmed) = references.adopt(self.core, self.source, fork)?;
        self.arrived.pending.extend(unconfirmed);
        Ok(adopted)
    }
}

impl Arrived {
    pub(crate) fn is_known(&self) -> bool {
        self.pending.is_empty()
    }

    /// Blocks until the owners have confirmed all references.
    ///
    /// # Errors
    ///
    /// Returns the error of the first reference that cannot be used.
    pub(crate) fn wait(&mut self) -> Result<(), RpcError> {
        for confirmation in self.pending.drain(..) {
            confirmation.park(None);
            confirmation.take().unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}

/// Future that is ready when the owners have confirmed all references.
impl Future for Arrived {
    type Output = Result<(), RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(confirmation) = self.pending.last() {
            match confirmation.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {
                    self.pending.pop();
                }
                Poll::Ready(Err(error)) => {
                    self.pending.clear();
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
