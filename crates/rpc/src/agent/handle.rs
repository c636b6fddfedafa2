//! The handle of an agent: starting, asking, stopping.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo};

use super::accept::Reception;
use super::call::Destination;
use super::core::{Core, Setup};
use super::driver;
use crate::connection::link::Endpoint;
use crate::error::{RpcError, RpcErrorKind};
use crate::group::Group;
use crate::init_rpc;
use crate::transport::Listener;

/// An agent: calls methods of other workers, and is called by them. Clones are handles of the same
/// agent, which stops when the last one is dropped.
#[derive(Clone)]
pub struct RpcAgent {
    core: Arc<Core>,
    /// Nothing in the handles that functions get: they must not keep their own agent running.
    keeper: Option<Arc<Keeper>>,
}

/// Stops the agent when it is dropped.
struct Keeper {
    core: Arc<Core>,
    driver: Mutex<Option<JoinHandle<()>>>,
    /// The group that it is in; none after it has left.
    group: Mutex<Option<Group>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.core.stop();
        let driver = self.driver.get_mut();
        if let Some(driver) = driver.take()
            && driver.thread().id() != std::thread::current().id()
        {
            // A panic of the driver was reported when it happened.
            let _ = driver.join();
        }
    }
}

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
        listener: Listener,
        knowing: impl FnOnce(&Core),
    ) -> Result<Self, RpcError> {
        let failed = |error: std::io::Error| {
            let text = format!("the agent cannot be started: {error}");
            RpcError::new(RpcErrorKind::Internal, text)
        };
        let core = Core::new(setup).map_err(failed)?;
        knowing(&core);
        let reception = Reception::new(&core, listener).map_err(failed)?;
        let driver = driver::start(Arc::clone(&core), reception).map_err(failed)?;
        let keeper = Keeper {
            core: Arc::clone(&core),
            driver: Mutex::new(Some(driver)),
            group: Mutex::new(None),
        };
        Ok(Self {
            core,
            keeper: Some(Arc::new(keeper)),
        })
    }

    /// A handle that does not keep the agent running.
    pub(crate) fn borrowed(core: Arc<Core>) -> Self {
        Self { core, keeper: None }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn set_group(&self, group: Group) {
        if let Some(keeper) = &self.keeper {
            *keeper.group.lock() = Some(group);
        }
    }

    pub(crate) fn take_group(&self) -> Option<Group> {
        let keeper = self.keeper.as_ref()?;
        let mut group = keeper.group.lock();
        group.take()
    }

    /// Says to the group whose answers this worker waits for.
    pub(super) fn waits_for(&self, others: &[WorkerId]) -> Result<(), RpcError> {
        let group = self.keeper.as_ref().map(|keeper| keeper.group.lock());
        match group.as_deref() {
            Some(Some(group)) => group.waits_for(others),
            _ => Ok(()),
        }
    }

    pub(super) fn is_in_static_group(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| {
            let group = keeper.group.lock();
            group.as_ref().is_some_and(Group::is_static)
        })
    }

    /// The worker that this agent is.
    pub fn me(&self) -> &WorkerInfo {
        &self.core.me
    }

    /// Whether the group is static: all workers were known from the beginning.
    pub fn is_static_group(&self) -> bool {
        // The members of a dynamic group have none that they all know.
        self.core.group != 0
    }

    /// A worker of the group.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::UnknownWorker`] if nobody has this name or id.
    pub fn worker<'a>(&self, which: impl Into<Destination<'a>>) -> Result<WorkerInfo, RpcError> {
        Ok(self.core.member(&which.into())?.info)
    }

    /// The workers of the group, this one included, by their ids.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let members = self.core.members();
        members.values().map(|member| member.info.clone()).collect()
    }

    /// How long calls may take that do not say so themselves; `None` if as long as they take.
    pub fn timeout(&self) -> Option<Duration> {
        self.core.timeout()
    }

    /// Changes that, for calls made from now on.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`] for zero.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), RpcError> {
        if timeout.is_some_and(|timeout| timeout < Duration::from_micros(1)) {
            let text =
                "a timeout of zero leaves no time for a call: name at least 1 µs, or none at all";
            return Err(RpcError::invalid(text));
        }
        self.core.set_timeout(timeout);
        Ok(())
    }

    /// What the agent is doing.
    pub fn traffic(&self) -> Traffic {
        let core = &self.core;
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
            in_flight: core.in_flight() as u64,
            running: counters.running.load(Ordering::Relaxed),
            connections: counters.connected.load(Ordering::Relaxed),
            peers: peers.collect(),
        }
    }

    /// Waits until the calls that were made are over, and makes no more. Calls of others are still
    /// served. Says whether all were over in time.
    pub(crate) fn drain(&self, until: Option<Instant>) -> bool {
        self.core.drain(until)
    }

    /// Stops at once: calls on their way fail with [`RpcErrorKind::Stopping`] here and with
    /// [`RpcErrorKind::PeerLost`] at the other side, functions that run are told through their
    /// [`Cancellation`](crate::Cancellation) and not waited for. Async functions that have not ended a second
    /// later are dropped where they wait.
    pub fn stop(&self) {
        self.core.stop();
        let driver = self.keeper.as_ref().and_then(|keeper| {
            let mut driver = keeper.driver.lock();
            driver.take()
        });
        if let Some(driver) = driver
            && driver.thread().id() != std::thread::current().id()
        {
            // A panic of the driver was reported when it happened.
            let _ = driver.join();
        }
        init_rpc::ended(self);
    }

    /// Whether it is the same agent, not only one of the same name.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl fmt::Debug for RpcAgent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RpcAgent({})", self.core.me)
    }
}
