//! The agent as its connections see it, changes of the group, and lost workers.

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
            tracing::warn!(worker = %client.worker(), %error, "closed the connection to a worker");
        }
    }
}

impl Core {
    /// Registers a peer that has completed the handshake.
    ///
    /// `process` is the process at the other end, if the kernel reports it.
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

    /// Handles the end of a connection.
    /// `caller` is `None` if the connection was not accepted yet.
    pub(crate) fn caller_lost(self: &Arc<Self>, caller: Option<&Caller>, error: &RpcError) {
        if let Some(caller) = caller {
            let unreachable = Input::Unreachable(caller.holder());
            self.references.handle(self, unreachable);
            if let Some(lender) = self.backend.lender() {
                lender.lost(caller.holder());
            }
            if error.kind == RpcErrorKind::PeerLost {
                self.gathers
                    .disconnected(&caller.worker, caller.incarnation);
            }
            // The pool may have grown only for this connection.
            self.pool.clear();
        }
        let worker = caller.map(|caller| caller.worker.to_string());
        if error.kind == RpcErrorKind::Protocol {
            tracing::warn!(worker, %error, "closed the connection of a worker");
        }
    }

    /// Applies a change of the group.
    ///
    /// This closes the connections to workers that have left the group.
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

    /// Handles a connection to a worker that has ended or could not be opened.
    /// If the worker is dead, this may be the only event that reports its death.
    pub(crate) fn cut_off(self: &Arc<Self>, id: WorkerId) {
        if let Some(member) = self.members().get(&id) {
            let unreachable = Input::Unreachable(member.holder());
            self.references.handle(self, unreachable);
            if let Some(lender) = self.backend.lender() {
                lender.lost(member.holder());
            }
        }
    }
}
