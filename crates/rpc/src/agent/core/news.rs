//! What an agent is told of others: who is in the group, whose connections come and go, who holds what.

use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::rref::Input;
use rdzv_rpc_proto::worker::WorkerId;

use super::{Core, Members};
use crate::connection::client::Client;
use crate::connection::server::Caller;
use crate::error::{RpcError, RpcErrorKind};

impl Core {
    /// The group has changed. Connections to workers that are not in it any more are closed.
    pub(crate) fn set_members(&self, members: Members) {
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
                self.references.tell(self, Input::Left(former.holder()));
            }
        }
        self.gathers.changed(&former, &members);
        self.peers.keep(&members);
        self.tell_group_changed();
    }

    pub(crate) fn connection_lost(&self, client: &Arc<Client>, error: &RpcError) {
        let was = self.peers.lost(client);
        if let Some(incarnation) = was.filter(|_| error.kind == RpcErrorKind::PeerLost) {
            self.gathers.disconnected(client.worker(), incarnation);
        }
        self.cut_off(client.worker().id);
        self.pool.clear();
        if error.kind == RpcErrorKind::Protocol {
            tracing::warn!(worker = %client.worker(), %error, "gave up the connection to a worker");
        }
    }

    /// The connection to a worker is over. If it is dead, nothing else tells.
    pub(crate) fn cut_off(&self, id: WorkerId) {
        if let Some(member) = self.members().get(&id) {
            self.references
                .tell(self, Input::Unreachable(member.holder()));
        }
    }

    pub(crate) fn caller_known(&self, caller: &Caller) {
        self.gathers.connected(&caller.worker, caller.incarnation);
        tracing::debug!(worker = %caller.worker, incarnation = caller.incarnation, "a worker connected");
        self.references
            .tell(self, Input::Reachable(caller.holder()));
    }

    pub(crate) fn caller_lost(&self, caller: Option<&Caller>, error: &RpcError) {
        if let Some(caller) = caller {
            self.references
                .tell(self, Input::Unreachable(caller.holder()));
            if error.kind == RpcErrorKind::PeerLost {
                self.gathers
                    .disconnected(&caller.worker, caller.incarnation);
            }
            // It may have been what all the memory was for.
            self.pool.clear();
        }
        let worker = caller.map(|caller| caller.worker.to_string());
        if error.kind == RpcErrorKind::Protocol {
            tracing::warn!(worker, %error, "gave up the connection of a worker");
        }
    }

    /// Messages about remote references have come.
    pub(crate) fn references(&self, caller: &Caller, batch: &Bytes) {
        self.references.received(self, caller.holder(), batch);
    }
}
