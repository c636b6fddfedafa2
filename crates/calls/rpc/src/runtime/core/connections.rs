//! What the connections need of their agent, changes of the group, and workers that are lost.

use std::sync::Arc;

use rdzv_rpc_proto::frame::hello::Hello;
use rdzv_rpc_proto::rref::Input;
use rdzv_rpc_proto::worker::WorkerId;
use rdzv_shm::pass::Peer;

use super::Core;
use crate::bulk::remote_read::Lending;
use crate::channel::client::{Client, ClientOwner};
use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::member::{Caller, Members};

impl ClientOwner for Core {
    fn connection_lost(self: Arc<Self>, client: &Arc<Client>, error: &RpcError) {
        let was_last = self.peers.lost(client);
        if was_last && error.kind == RpcErrorKind::PeerLost {
            self.gathers
                .disconnected(client.worker(), client.incarnation);
        }
        self.cut_off(client.worker().id);
        self.pool.clear();
        if error.kind == RpcErrorKind::Protocol {
            tracing::warn!(worker = %client.worker(), %error, "gave up the connection to a worker");
        }
    }
}

impl Core {
    /// Takes a peer in that has proved that it belongs to the job.
    ///
    /// `process` is the process at the other end, if it is on this host.
    pub(crate) fn accepted(self: &Arc<Self>, peer: Hello, process: Option<Peer>) -> Caller {
        let process = self.local_process(&peer, process);
        let caller = Caller {
            worker: peer.worker,
            incarnation: peer.incarnation,
            lending: Arc::new(Lending::new(process, self.pool.clone())),
        };
        self.gathers.connected(&caller.worker, caller.incarnation);
        tracing::debug!(worker = %caller.worker, incarnation = caller.incarnation, "a worker connected");
        let reachable = Input::Reachable(caller.holder());
        self.references.handle(self, reachable);
        caller
    }

    /// Notes that a connection is over; without a caller, before it was accepted.
    pub(crate) fn caller_lost(self: &Arc<Self>, caller: Option<&Caller>, error: &RpcError) {
        if let Some(caller) = caller {
            let unreachable = Input::Unreachable(caller.holder());
            self.references.handle(self, unreachable);
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

    /// The group has changed.
    ///
    /// Connections to workers that are not in it any more are closed.
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
