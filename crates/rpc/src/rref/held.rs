//! A share in a value that is held here, whatever the type of the value.

use std::sync::Arc;

use rdzv_rpc_proto::rref::{Handle, Input};
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::{Deserialize, Serialize};

use crate::agent::core::Core;

/// A share that is held: dropping it gives it back.
pub(crate) struct Held {
    /// It does not keep the agent running; when that stops, nothing is held any more.
    pub(super) core: Arc<Core>,
    pub(super) handle: Handle,
    pub(super) owner: WorkerInfo,
    /// The name of the value's type, on whichever worker made the first reference.
    pub(super) type_name: Box<str>,
}

/// How a share is named while a message is serialised.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Local {
    /// Whose it is: two agents of a process must not mix theirs.
    pub(super) me: rdzv_rpc_proto::rref::Member,
    pub(super) handle: Handle,
    pub(super) owner: WorkerInfo,
    pub(super) type_name: Box<str>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let register = &self.core.references;
        register.tell(&self.core, Input::Dropped(self.handle));
        if let Handle::User(_, fork) = self.handle {
            register.forget_cause(fork);
        }
    }
}
