//! References in messages: forked as they leave, adopted as they arrive.

use std::sync::Arc;

use rdzv_rpc_proto::rref::{self as machine, ForkData, ForkId, Handle, Input, Member};
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::{Deserialize, Serialize};

use super::Register;
use super::held::{Held, Local};
use crate::error::{RpcError, RpcErrorKind};
use crate::message::Adopted;
use crate::rref::failure;
use crate::runtime::core::{Confirmation, Core};

/// A reference on its way.
#[derive(Debug, Serialize, Deserialize)]
struct Travelling {
    fork: ForkData,
    owner: WorkerInfo,
    type_name: Box<str>,
}

impl Register {
    /// A fork of a reference that leaves in a message to `to`.
    pub(super) fn fork_for(
        &self,
        core: &Arc<Core>,
        to: Member,
        local: &[u8],
    ) -> Result<(ForkId, Vec<u8>), RpcError> {
        let unreadable = |error: postcard::Error| {
            let text = format!("a remote reference cannot be put into a message: {error}");
            RpcError::new(RpcErrorKind::Internal, text)
        };
        let local: Local = postcard::from_bytes(local).map_err(unreadable)?;
        if local.me != self.me() {
            let text = format!(
                "{} belongs to another agent of this process: use it with calls of that one",
                local.handle
            );
            return Err(RpcError::invalid(text));
        }
        let forked = self.with(core, |machine, now| machine.fork(now, local.handle, to));
        let fork = forked.map_err(|why| match local.handle {
            Handle::User(_, fork) => self.why(fork, &why),
            Handle::Owner(_) => failure::error(&why),
        })?;
        let travelling = Travelling {
            fork,
            owner: local.owner,
            type_name: local.type_name,
        };
        let bytes = postcard::to_stdvec(&travelling).map_err(|error| {
            self.tell(core, Input::NotSent(travelling.fork.fork));
            unreadable(error)
        })?;
        Ok((travelling.fork.fork, bytes))
    }

    /// The reference that `source` has forked, and its confirmation if that is not here yet.
    pub(super) fn adopt_from(
        &self,
        core: &Arc<Core>,
        source: &WorkerInfo,
        fork: &[u8],
    ) -> Result<(Adopted, Option<Confirmation>), RpcError> {
        let travelling: Travelling = postcard::from_bytes(fork).map_err(|error| {
            let text = format!("a remote reference in the message cannot be read: {error}");
            RpcError::new(RpcErrorKind::Serialization, text).with_worker(source.clone())
        })?;
        if travelling.fork.parent.id != source.id {
            let text = "the message has a remote reference that another worker has passed on";
            let error = RpcError::new(RpcErrorKind::Protocol, text);
            return Err(error.with_worker(source.clone()));
        }
        let adopted = self.with(core, |machine, now| machine.adopt(now, &travelling.fork));
        let (handle, confirmed) = match adopted.map_err(|why| failure::error(&why))? {
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
}
