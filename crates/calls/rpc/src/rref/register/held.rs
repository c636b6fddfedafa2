//! A share in a value that is held here, whatever the type of the value.

use std::sync::Arc;

use rdzv_rpc_proto::rref::{Handle, Input};
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::{Deserialize, Serialize};

use super::Register;
use crate::runtime::core::Core;

/// A share that is held: dropping it gives it back.
pub(crate) struct Held {
    /// It does not keep the agent running; when that stops, nothing is held any more.
    pub(in crate::rref) core: Arc<Core>,
    pub(in crate::rref) handle: Handle,
    pub(in crate::rref) owner: WorkerInfo,
    /// The name of the value's type, on whichever worker made the first reference.
    pub(in crate::rref) type_name: Box<str>,
}

/// How a share is named while a message is serialised.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::rref) struct Local {
    /// Whose it is: two agents of a process must not mix theirs.
    pub(in crate::rref) me: rdzv_rpc_proto::rref::Member,
    pub(in crate::rref) handle: Handle,
    pub(in crate::rref) owner: WorkerInfo,
    pub(in crate::rref) type_name: Box<str>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let register = Register::of(&self.core);
        register.tell(&self.core, Input::Dropped(self.handle));
        if let Handle::User(_, fork) = self.handle {
            register.forget_cause(fork);
        }
    }
}
