//! References in messages: forked as they leave, adopted as they arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rdzv_rpc_proto::rref::{self as machine, ForkData, ForkId, Handle, Input, Member};
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::{Deserialize, Serialize};

use super::failure;
use super::held::{Held, Local};
use super::register::Confirmation;
use crate::agent::core::Core;
use crate::error::{RpcError, RpcErrorKind};
use crate::message::{AdoptReferences, Adopted, ForkReferences};

/// A reference on its way.
#[derive(Debug, Serialize, Deserialize)]
struct Travelling {
    fork: ForkData,
    owner: WorkerInfo,
    type_name: Box<str>,
}

/// Forks the references of one message.
pub(crate) struct Forking<'a> {
    core: &'a Core,
    to: Member,
    forks: Vec<ForkId>,
}

impl<'a> Forking<'a> {
    pub(crate) fn new(core: &'a Core, to: Member) -> Self {
        Self {
            core,
            to,
            forks: Vec::new(),
        }
    }

    /// The message exists: these forks are in it.
    pub(crate) fn into_forks(mut self) -> Vec<ForkId> {
        std::mem::take(&mut self.forks)
    }
}

impl Drop for Forking<'_> {
    fn drop(&mut self) {
        // The message does not exist.
        not_sent(self.core, std::mem::take(&mut self.forks));
    }
}

/// The message that these forks are in was not sent.
pub(crate) fn not_sent(core: &Core, forks: Vec<ForkId>) {
    for fork in forks {
        core.references.tell(core, Input::NotSent(fork));
    }
}

/// The message that these forks are in has failed, and may have arrived.
pub(crate) fn strayed(core: &Core, forks: &[ForkId]) {
    for fork in forks {
        core.references.tell(core, Input::Strayed(*fork));
    }
}

impl ForkReferences for Forking<'_> {
    fn fork(&mut self, local: &[u8]) -> Result<Vec<u8>, RpcError> {
        let unreadable = |error: postcard::Error| {
            let text = format!("a remote reference cannot be put into a message: {error}");
            RpcError::new(RpcErrorKind::Internal, text)
        };
        let local: Local = postcard::from_bytes(local).map_err(unreadable)?;
        let register = &self.core.references;
        if local.me != register.me() {
            let text = format!(
                "{} belongs to another agent of this process: use it with calls of that one",
                local.handle
            );
            return Err(RpcError::invalid(text));
        }
        let forked = register.with(self.core, |machine, now| {
            machine.fork(now, local.handle, self.to)
        });
        let fork = forked.map_err(|why| match local.handle {
            Handle::User(_, fork) => register.why(fork, &why),
            Handle::Owner(_) => failure::error(&why),
        })?;
        self.forks.push(fork.fork);
        let travelling = Travelling {
            fork,
            owner: local.owner,
            type_name: local.type_name,
        };
        postcard::to_stdvec(&travelling).map_err(unreadable)
    }
}

/// Adopts the references of one message.
pub(crate) struct Adopting<'a> {
    core: &'a Arc<Core>,
    source: &'a WorkerInfo,
    arrived: Arrived,
}

/// References that have come, and are not all known to their owners yet.
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

    /// What there is to wait for.
    pub(crate) fn arrived(self) -> Arrived {
        self.arrived
    }
}

impl AdoptReferences for Adopting<'_> {
    fn adopt(&mut self, fork: &[u8]) -> Result<Adopted, RpcError> {
        let travelling: Travelling = postcard::from_bytes(fork).map_err(|error| {
            let text = format!("a remote reference in the message cannot be read: {error}");
            RpcError::new(RpcErrorKind::Serialization, text).with_worker(self.source.clone())
        })?;
        if travelling.fork.parent.id != self.source.id {
            let text = "the message has a remote reference that another worker has passed on";
            let error = RpcError::new(RpcErrorKind::Protocol, text);
            return Err(error.with_worker(self.source.clone()));
        }
        let register = &self.core.references;
        let adopted = register.with(self.core, |machine, now| {
            machine.adopt(now, &travelling.fork)
        });
        let (handle, confirmed) = match adopted.map_err(|why| failure::error(&why))? {
            machine::Adopted::Owner(rref) => (Handle::Owner(rref), true),
            machine::Adopted::User {
                rref,
                fork,
                confirmed,
            } => (Handle::User(rref, fork), confirmed),
        };
        let held = Held {
            core: Arc::clone(self.core),
            handle,
            owner: travelling.owner,
            type_name: travelling.type_name,
        };
        if let (Handle::User(_, fork), false) = (handle, confirmed)
            && let Some(confirmation) = register.confirmation(fork)?
        {
            self.arrived.pending.push(confirmation);
        }
        Ok(Arc::new(held))
    }
}

impl Arrived {
    /// Blocks until the owners know of all.
    ///
    /// # Errors
    ///
    /// The first reference that turned out to be of no use.
    pub(crate) fn wait(&mut self) -> Result<(), RpcError> {
        for confirmation in self.pending.drain(..) {
            confirmation.park(None);
            confirmation.take().unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}

/// Ready when the owners know of all.
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
