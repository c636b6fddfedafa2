//! Handle to an agent: start, queries, stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdzv_rpc_proto::rref::Member as Holder;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo};

use super::gather::leader;
use crate::call::methods::Methods;
use crate::error::RpcError;
use crate::group::Group;
use crate::options::DEFAULT_TIMEOUT;
use crate::rref::{self, Register};
use crate::runtime::accept::Reception;
use crate::runtime::call::Destination;
use crate::runtime::call::Timeout;
use crate::runtime::core::{Core, RpcAgent, Setup};
use crate::runtime::driver;
use crate::runtime::introduction;
use crate::transport::Listener;
use crate::wire::link::Endpoint;

/// Statistics about the calls and connections of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Number of calls that this worker has made.
    pub calls: u64,
    /// Number of those calls that failed after a connection accepted them.
    pub failures: u64,
    /// Number of calls, its own included, that this worker has begun to serve.
    pub served: u64,
    /// Number of calls from this worker that are in flight.
    pub in_flight: u64,
    /// Number of calls, its own included, that this worker currently serves.
    pub running: u64,
    /// Number of connections that this worker has opened, including one to itself.
    pub connections: u64,
    /// Workers to which a connection is open.
    pub peers: Vec<PeerTraffic>,
}

/// Statistics about the connection to one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerTraffic {
    /// Worker at the other end of the connection.
    pub worker: WorkerInfo,
    /// Transport of the connection: `shared`, `unix`, `tcp` or `tls`.
    pub transport: String,
    /// Reason why this transport was chosen.
    pub reason: String,
    /// `true` if the worker can read large parts from this process's memory.
    pub reads_memory: bool,
    /// Number of calls to this worker that are in flight.
    pub in_flight: u64,
    /// Size in bytes of those requests that count against the limit of 64 MiB.
    pub bytes_in_flight: u64,
}

impl RpcAgent {
    /// Starts the threads of an agent.
    ///
    /// `knowing` runs before the agent serves its first call, and prepares the agent's core.
    pub(crate) fn start(
        setup: Setup,
        methods: Methods,
        listener: Listener,
        knowing: impl FnOnce(&Arc<Core>),
    ) -> Result<Self, RpcError> {
        let failed = RpcError::internal("cannot start the agent");
        let me = Holder::new(setup.me.id, setup.incarnation);
        let own = rref::offered().into_iter();
        let own = own.chain([leader::offered(), introduction::offered()]);
        let methods = own.fold(methods, |methods, (name, handler)| {
            methods.offer(name, handler)
        });
        let (functions, keeps) = methods.split();
        let references = Register::new(me, setup.references, keeps);
        let core = Core::new(setup, functions, Box::new(references)).map_err(&failed)?;
        let _ = core.introduce.set(introduction::introduce);
        knowing(&core);
        let reception = Reception::new(&core, listener).map_err(&failed)?;
        let driver = driver::start(Arc::clone(&core), reception).map_err(&failed)?;
        Ok(Self::owned(core, driver))
    }

    pub(crate) fn set_group(&self, group: Group) {
        if let Some(guard) = &self.guard {
            *guard.group.lock() = Some(group);
        }
    }

    pub(crate) fn take_group(&self) -> Option<Group> {
        let guard = self.guard.as_ref()?;
        let mut group = guard.group.lock();
        group.take()
    }

    /// Records in the group the workers whose answers this worker waits for.
    pub(super) fn waits_for(&self, others: &[WorkerId]) -> Result<(), RpcError> {
        let group = self.guard.as_ref().map(|guard| guard.group.lock());
        match group.as_deref() {
            Some(Some(group)) => group.waits_for(others),
            _ => Ok(()),
        }
    }

    pub(super) fn is_in_static_group(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| {
            let group = guard.group.lock();
            group.as_ref().is_some_and(Group::is_static)
        })
    }

    /// Returns the worker that this agent represents.
    pub fn me(&self) -> &WorkerInfo {
        &self.core().me
    }

    /// Returns names and values that describe the device memory of this worker.
    pub fn device_facts(&self) -> Vec<(String, String)> {
        self.core().backend.facts()
    }

    /// `true` if the group is static, so that all workers are known from the start.
    pub fn is_static_group(&self) -> bool {
        // A dynamic group has no number that all its members share.
        self.core().group != 0
    }

    /// Returns a worker of the group.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::UnknownWorker`] if no worker has this name or id.
    ///
    /// [`RpcErrorKind::UnknownWorker`]: crate::RpcErrorKind::UnknownWorker
    pub fn worker<'a>(&self, which: impl Into<Destination<'a>>) -> Result<WorkerInfo, RpcError> {
        Ok(self.core().member(&which.into())?.info)
    }

    /// Returns all workers of the group, including this one, ordered by id.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let members = self.core().members();
        members.values().map(|member| member.info.clone()).collect()
    }

    /// Returns the timeout for calls that do not set their own.
    pub fn timeout(&self) -> Timeout {
        self.core().timeout().map_or(Timeout::Never, Timeout::After)
    }

    /// Sets the timeout for later calls that do not set their own.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`] if the timeout is shorter than 1 µs.
    ///
    /// [`RpcErrorKind::InvalidArgument`]: crate::RpcErrorKind::InvalidArgument
    pub fn set_timeout(&self, timeout: impl Into<Timeout>) -> Result<(), RpcError> {
        let limit = timeout.into().limit(|| Some(DEFAULT_TIMEOUT))?;
        self.core().set_timeout(limit);
        Ok(())
    }

    /// Returns statistics about the agent's calls and connections.
    pub fn traffic(&self) -> Traffic {
        let core = self.core();
        let counters = &core.counters;
        let peers = core.peers.clients().into_iter().map(|client| {
            let link = client.link();
            PeerTraffic {
                worker: client.worker().clone(),
                transport: link.kind.to_string(),
                reason: link.reason.clone(),
                reads_memory: client.lending.lends(),
                in_flight: client.in_flight() as u64,
                bytes_in_flight: client.bytes_in_flight(),
            }
        });
        Traffic {
            calls: counters.made.load(Ordering::Relaxed),
            failures: counters.failed.load(Ordering::Relaxed),
            served: counters.served.load(Ordering::Relaxed),
            in_flight: core.in_flight.calls() as u64,
            running: counters.running.load(Ordering::Relaxed),
            connections: counters.connected.load(Ordering::Relaxed),
            peers: peers.collect(),
        }
    }

    /// Stops the agent immediately, without waiting for running functions.
    ///
    /// Calls in flight fail with [`RpcErrorKind::Stopping`] on this worker, and with
    /// [`RpcErrorKind::PeerLost`] or `Stopping` on the other side. Running functions are notified
    /// through their [`Cancellation`](crate::Cancellation), except those that
    /// [`remote`](Self::remote) calls. At most 1 s later, the agent drops async functions that are
    /// still running, at their current `await`.
    ///
    /// [`RpcErrorKind::PeerLost`]: crate::RpcErrorKind::PeerLost
    /// [`RpcErrorKind::Stopping`]: crate::RpcErrorKind::Stopping
    pub fn stop(&self) {
        self.core().stop();
        if let Some(guard) = &self.guard {
            guard.join();
        }
        if let Some(on_stop) = self.core().on_stop.get() {
            on_stop(self);
        }
    }
}
