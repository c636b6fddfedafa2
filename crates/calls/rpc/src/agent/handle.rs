//! The handle of an agent: starting, asking, stopping.

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
use crate::transport::Listener;
use crate::wire::link::Endpoint;

/// What an agent knows of its calls, connections and functions just now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Calls made since the start.
    pub calls: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// Calls of other workers that were begun since the start.
    pub served: u64,
    /// Calls on their way.
    pub in_flight: u64,
    /// Calls of other workers that are being worked on.
    pub running: u64,
    /// Connections that were made to other workers since the start.
    pub connections: u64,
    /// Workers that are connected to.
    pub peers: Vec<PeerTraffic>,
}

/// The connection to one other worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerTraffic {
    /// The worker.
    pub worker: WorkerInfo,
    /// What carries the bytes: `shared`, `unix`, `tcp` or `tls`.
    pub transport: String,
    /// Why that was chosen.
    pub reason: String,
    /// Whether large parts are read out of the memory of the other process.
    pub reads_memory: bool,
    /// Calls on their way to it.
    pub in_flight: u64,
    /// Bytes of those calls.
    pub bytes_in_flight: u64,
}

impl RpcAgent {
    /// Starts the threads of an agent. What has to be known before anybody is served is told to it by
    /// `knowing`.
    pub(crate) fn start(
        setup: Setup,
        methods: Methods,
        listener: Listener,
        knowing: impl FnOnce(&Arc<Core>),
    ) -> Result<Self, RpcError> {
        let failed = RpcError::internal("the agent cannot be started");
        let me = Holder::new(setup.me.id, setup.incarnation);
        let own = rref::offered().into_iter().chain([leader::offered()]);
        let methods = own.fold(methods, |methods, (name, handler)| {
            methods.offer(name, handler)
        });
        let (functions, keeps) = methods.split();
        let references = Register::new(me, setup.references, keeps);
        let core = Core::new(setup, functions, Box::new(references)).map_err(&failed)?;
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

    /// Says to the group whose answers this worker waits for.
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

    /// The worker that this agent is.
    pub fn me(&self) -> &WorkerInfo {
        &self.core().me
    }

    /// Whether the group is static: all workers were known from the beginning.
    pub fn is_static_group(&self) -> bool {
        // The members of a dynamic group have none that they all know.
        self.core().group != 0
    }

    /// A worker of the group.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::UnknownWorker`] if nobody has this name or id.
    ///
    /// [`RpcErrorKind::UnknownWorker`]: crate::RpcErrorKind::UnknownWorker
    pub fn worker<'a>(&self, which: impl Into<Destination<'a>>) -> Result<WorkerInfo, RpcError> {
        Ok(self.core().member(&which.into())?.info)
    }

    /// The workers of the group, this one included, by their ids.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let members = self.core().members();
        members.values().map(|member| member.info.clone()).collect()
    }

    /// How long calls may take that do not say so themselves.
    pub fn timeout(&self) -> Timeout {
        self.core().timeout().map_or(Timeout::Never, Timeout::After)
    }

    /// Changes that, for calls made from now on.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`] for zero.
    ///
    /// [`RpcErrorKind::InvalidArgument`]: crate::RpcErrorKind::InvalidArgument
    pub fn set_timeout(&self, timeout: impl Into<Timeout>) -> Result<(), RpcError> {
        let limit = timeout.into().limit(|| Some(DEFAULT_TIMEOUT))?;
        self.core().set_timeout(limit);
        Ok(())
    }

    /// What the agent is doing.
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

    /// Stops at once: calls on their way fail with [`RpcErrorKind::Stopping`] here and with
    /// [`RpcErrorKind::PeerLost`] at the other side, functions that run are told through their
    /// [`Cancellation`](crate::Cancellation) and not waited for. Async functions that have not ended a second
    /// later are dropped where they wait.
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
