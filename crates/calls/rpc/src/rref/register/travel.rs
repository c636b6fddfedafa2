//! References in messages, and other operations that the agent needs.
//!
//! A reference is forked when it is sent, and adopted when it arrives.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use rdzv_core::machine::Machine as _;
use rdzv_rpc_proto::rref::{
    self as machine, Batch, ForkData, ForkId, Handle, Input, Leak, Member, ReferenceFailure,
};
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::{Deserialize, Serialize};

use super::{Held, Register};
use crate::channel::slot::Slot;
use crate::error::{RpcError, RpcErrorKind};
use crate::message::LocalReference;
use crate::runtime::core::{Confirmation, Core, References as AgentReferences};
use crate::wire::clock;

/// A reference inside a message.
#[derive(Debug, Serialize, Deserialize)]
struct Travelling {
    fork: ForkData,
    owner: WorkerInfo,
    type_name: Box<str>,
}

impl AgentReferences for Register {
    fn fork(
        &self,
        core: &Arc<Core>,
        to: Member,
        local: &LocalReference,
    ) -> Result<(ForkId, Vec<u8>), RpcError> {
        let Some(local) = local.downcast_ref::<Held>() else {
            return Err(RpcError::invalid(
                "the reference does not belong to an agent",
            ));
        };
        if Register::of(&local.core).me() != self.me() {
            let text = format!(
                "{} belongs to another agent of this process: use it with calls of that agent",
                local.handle
            );
            return Err(RpcError::invalid(text));
        }
        let forked = self.with(core, |machine, now| machine.fork(now, local.handle, to));
        let fork = forked.map_err(|why| match local.handle {
            Handle::User(_, fork) => self.why(fork, &why),
            Handle::Owner(_) => why.into(),
        })?;
        let travelling = Travelling {
            fork,
            owner: local.owner.clone(),
            type_name: local.type_name.clone(),
        };
        let bytes = postcard::to_stdvec(&travelling).map_err(|error| {
            self.tell(core, Input::NotSent(travelling.fork.fork));
            RpcError::internal("cannot serialise a remote reference")(error)
        })?;
        Ok((travelling.fork.fork, bytes))
    }

    fn adopt(
        &self,
        core: &Arc<Core>,
        source: &WorkerInfo,
        fork: &[u8],
    ) -> Result<(LocalReference, Option<Confirmation>), RpcError> {
        let travelling: Travelling = postcard::from_bytes(fork).map_err(|error| {
            let text = format!("cannot deserialise a remote reference in the message: {error}");
            RpcError::new(RpcErrorKind::Serialization, text).with_worker(source.clone())
        })?;
        if travelling.fork.parent.id != source.id {
            let text = "the message has a remote reference that another worker forwarded";
            let error = RpcError::new(RpcErrorKind::Protocol, text);
            return Err(error.with_worker(source.clone()));
        }
        let adopted = self.with(core, |machine, now| machine.adopt(now, &travelling.fork));
        let (handle, confirmed) = match adopted? {
            machine::Adopted::Owner(rref) => (Handle::Owner(rref), true),
            machine::Adopted::User {
                rref,
                fork,
                confirmed,
            } => (Handle::User(rref, fork), confirmed),
        };
        let held = Held {
            core: Arc::clone(core),
            handle,
            owner: travelling.owner,
            type_name: travelling.type_name,
        };
        let unconfirmed = match (handle, confirmed) {
            (Handle::User(_, fork), false) => self.confirmation(fork)?,
            _ => None,
        };
        Ok((Arc::new(held), unconfirmed))
    }

    fn handle(&self, core: &Arc<Core>, input: Input<'_>) {
        self.tell(core, input);
    }

    fn received(&self, core: &Arc<Core>, from: Member, body: &Bytes) {
        match postcard::from_bytes::<Batch>(body) {
            Ok(batch) if batch.from == from => self.tell(core, Input::Received(&batch)),
            Ok(batch) => {
                tracing::warn!(%from, says = %batch.from, "ignored messages about references");
            }
            Err(error) => tracing::warn!(
                %from, %error,
                "cannot deserialise messages about references"
            ),
        }
    }

    fn expire(&self, core: &Arc<Core>, now: Instant) -> Option<Instant> {
        let now = clock::mono(now);
        let due = self.state.lock().machine.deadline()?;
        if due > now {
            return Some(clock::instant(due));
        }
        self.tell(core, Input::Tick);
        self.state.lock().machine.deadline().map(clock::instant)
    }

    fn drain(&self, core: &Arc<Core>, how: Input<'_>, deadline: Instant) -> bool {
        let slot = Arc::new(Slot::default());
        let drained = Arc::clone(&slot);
        self.with_state(core, |state, now| {
            state.drained.push(drained);
            state.machine.handle(now, how);
        });
        slot.park(Some(deadline));
        slot.is_filled()
    }

    fn end(&self, core: &Arc<Core>) -> Vec<Leak> {
        self.tell(core, Input::End);
        let mut state = self.state.lock();
        let questions = std::mem::take(&mut state.questions);
        let confirmations = std::mem::take(&mut state.confirmations);
        let leaks = std::mem::take(&mut state.leaks);
        let values = std::mem::take(&mut state.values);
        drop(state);
        let stopping = || RpcError::from(ReferenceFailure::Stopping);
        for (_, answer) in questions.into_values() {
            answer.fill(Err(stopping()));
        }
        for confirmation in confirmations.into_values().flatten() {
            confirmation.fill(Err(stopping()));
        }
        drop(values);
        leaks
    }
}
