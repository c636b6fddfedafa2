//! What the connections need of their agent.

use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::frame::Limits;
use rdzv_rpc_proto::frame::hello::Hello;
use rdzv_rpc_proto::rref::Input;
use rdzv_shm::pass::Peer;

use super::{CallContext, Core, RpcAgent};
use crate::bulk::remote_read::Lending;
use crate::channel::client::{Client, ClientOwner};
use crate::channel::counters::Counters;
use crate::error::{RpcError, RpcErrorKind};
use crate::service::executor::Executor;
use crate::service::functions::Functions;
use crate::service::server::{CallData, Caller, Service};

impl ClientOwner for Core {
    fn connection_lost(self: Arc<Self>, client: &Arc<Client>, error: &RpcError) {
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
}

impl Service for Core {
    type Context = CallContext;

    fn functions(&self) -> &Functions<CallContext> {
        &self.functions
    }

    fn context(self: Arc<Self>, call: CallData<'_>) -> CallContext {
        CallContext {
            agent: RpcAgent::borrowed(self),
            caller: call.caller.worker.clone(),
            caller_incarnation: call.caller.incarnation,
            deadline: call.deadline,
            cancellation: call.cancellation,
            trace: call.trace,
            connection: Some(call.connection),
        }
    }

    fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn is_stopped(&self) -> bool {
        self.in_flight.is_stopped()
    }

    fn accepted(self: &Arc<Self>, peer: Hello, process: Option<Peer>) -> Caller {
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

    fn caller_lost(self: &Arc<Self>, caller: Option<&Caller>, error: &RpcError) {
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

    fn references(self: &Arc<Self>, caller: &Caller, batch: &Bytes) {
        self.references.received(self, caller.holder(), batch);
    }
}
