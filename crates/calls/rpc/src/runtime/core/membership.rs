//! Changes of the group, and workers that are lost.

use std::sync::Arc;

use rdzv_rpc_proto::rref::Input;
use rdzv_rpc_proto::worker::WorkerId;

use super::Core;
use crate::runtime::member::Members;

impl Core {
    /// The group has changed. Connections to workers that are not in it any more are closed.
    pub(crate) fn set_members(self: &Arc<Self>, members: Members) {
        let members = Arc::new(members);
        let former = {
            let mut known = self.members.write();
            std::mem::replace(&mut *known, Arc::clone(&members))
        };
        for (id, former) in former.iter() {
            if members
                .get(id)
                .is_none_or(|now| now.incarnation != former.incarnation)
            {
                self.references.handle(self, Input::Left(former.holder()));
            }
        }
        self.gathers.changed(&former, &members);
        self.peers.keep(&members);
        self.notify_group_changed();
    }

    /// The connection to a worker is over. If it is dead, nothing else tells.
    pub(crate) fn cut_off(self: &Arc<Self>, id: WorkerId) {
        if let Some(member) = self.members().get(&id) {
            let unreachable = Input::Unreachable(member.holder());
            self.references.handle(self, unreachable);
        }
    }
}
