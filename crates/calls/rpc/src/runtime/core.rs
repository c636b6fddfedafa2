//! State of an agent, and handles to it.
//!
//! | file | contents |
//! |---|---|
//! | here | the parts, and the handles that applications and functions get |
//! | [`connections`] | the part that connections use, changes of the group, lost workers |
//! | [`deadlines`] | times at which the driver must run |

mod connections;
mod deadlines;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_lock::{Condvar, LimitedMutex, Mutex, RwLock};
use rdzv_rpc_proto::directory::GroupView;
use rdzv_rpc_proto::frame::FrameLimits;
use rdzv_rpc_proto::frame::hello::{Hello, PROTOCOL};
use rdzv_rpc_proto::heartbeat::Rhythm;
use rdzv_rpc_proto::rref::{ForkId, Input, Leak, Member as Holder, Settings};
use rdzv_rpc_proto::worker::WorkerInfo;
use rdzv_shm::Pool;
use rdzv_shm::pass::Peer;
use rdzv_trust::token::nonce;

use crate::channel::counters::Counters;
use crate::channel::in_flight::InFlight;
use crate::channel::slot::Slot;
use crate::device::DeviceBackend;
use crate::error::RpcError;
use crate::group::Group;
use crate::message::LocalReference;
use crate::runtime::gathers::Gathers;
use crate::runtime::member::{Member, Members};
use crate::runtime::peers::Peers;
use crate::service::cancellation::Cancellation;
use crate::service::code_kind::{CodeKind, inside};
use crate::service::executor::Executor;
use crate::service::functions::{self, Functions};
use crate::transport::peer_address::host_identity;
use crate::transport::{Token, TransportOptions};
use crate::wire::clock::limit_micros;
use crate::wire::link::LinkPoller;

/// An agent: calls methods of other workers, and serves their calls.
///
/// Clones are handles to the same agent. The agent stops when the last clone is dropped; handles
/// from [`CallContext::agent`] do not count.
#[derive(Clone)]
pub struct RpcAgent {
    core: Arc<Core>,
    /// Guard; `None` in handles for functions, which do not keep the agent running.
    pub(crate) guard: Option<Arc<StopGuard>>,
}

pub(crate) struct StopGuard {
    pub(crate) core: Arc<Core>,
    pub(crate) driver: Mutex<Option<JoinHandle<()>>>,
    /// Group of the agent; `None` before it has joined and after it has left.
    pub(crate) group: Mutex<Option<Group>>,
}

impl RpcAgent {
    /// Creates a handle that keeps the agent running.
    pub(crate) fn owned(core: Arc<Core>, driver: JoinHandle<()>) -> Self {
        let guard = StopGuard {
            core: Arc::clone(&core),
            driver: Mutex::new(Some(driver)),
            group: Mutex::new(None),
        };
        Self {
            core,
            guard: Some(Arc::new(guard)),
        }
    }

    /// Creates a handle that does not keep the agent running.
    pub(crate) fn borrowed(core: Arc<Core>) -> Self {
        Self { core, guard: None }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// `true` if both handles belong to the same agent.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl fmt::Debug for RpcAgent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RpcAgent({})", self.core.me)
    }
}

impl StopGuard {
    /// Waits for the driver, unless the calling thread is the driver.
    pub(crate) fn join(&self) {
        let driver = self.driver.lock().take();
        if let Some(driver) = driver
            && driver.thread().id() != std::thread::current().id()
        {
            // A panic of the driver was reported when it happened.
            let _ = driver.join();
        }
    }
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.core.stop();
        self.join();
    }
}

/// Connection that a running function can close.
pub(crate) trait HangUp: Send + Sync {
    /// Sends the reason to the caller, and closes the connection.
    ///
    /// The connection of a worker to itself stays open.
    fn hang_up(self: Arc<Self>, reason: &str);
}

/// Caller, deadline and trace of a call.
#[derive(Debug, Clone)]
pub struct CallContext {
    pub(crate) agent: RpcAgent,
    pub(crate) caller: WorkerInfo,
    pub(crate) caller_incarnation: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancellation: Cancellation,
    pub(crate) trace: u128,
    /// Connection of the call; `None` for a call without a connection.
    pub(crate) connection: Option<Weak<dyn HangUp>>,
}

impl CallContext {
    /// Returns the agent that runs the function, for further calls.
    pub fn agent(&self) -> &RpcAgent {
        &self.agent
    }

    /// Returns the worker that made the call.
    pub fn caller(&self) -> &WorkerInfo {
        &self.caller
    }

    /// Returns the deadline of the call, if any.
    ///
    /// For a function that `remote` calls, this is the end of the time limit of that call.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the flag that is set when the result is no longer needed.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Returns the id of the trace to which this call belongs.
    ///
    /// Calls that the function makes belong to the same trace.
    pub fn trace(&self) -> u128 {
        self.trace
    }

    /// Closes the connection of the call immediately.
    ///
    /// Use this if the caller has broken the protocol, after the call was answered: a later answer
    /// is lost. Other calls of the caller over this connection fail, and the caller must connect
    /// again. The connection of a worker to itself stays open.
    pub fn hang_up(&self, reason: &str) {
        if let Some(connection) = self.connection.as_ref().and_then(Weak::upgrade) {
            connection.hang_up(reason);
        }
    }

    /// Runs code as part of this call, for a thread outside of the agent.
    ///
    /// The code runs on the calling thread and may block. The calls that it makes are nested calls,
    /// like calls that functions make.
    pub fn inside<T>(&self, run: impl FnOnce() -> T) -> T {
        inside(CodeKind::Blocking, self.trace, run)
    }

    pub(crate) fn holder(&self) -> Holder {
        Holder::new(self.caller.id, self.caller_incarnation)
    }
}

/// Interface to an agent's remote references, which a higher layer implements.
pub(crate) trait References: Any + Send + Sync {
    /// Creates a fork of `local` for a message to `to`.
    fn fork(
        &self,
        core: &Arc<Core>,
        to: Holder,
        local: &LocalReference,
    ) -> Result<(ForkId, Vec<u8>), RpcError>;

    /// Adopts a fork from `source`; returns its reference and pending confirmation.
    fn adopt(
        &self,
        core: &Arc<Core>,
        source: &WorkerInfo,
        fork: &[u8],
    ) -> Result<(LocalReference, Option<Confirmation>), RpcError>;

    /// Passes an input to the state machine.
    fn handle(&self, core: &Arc<Core>, input: Input<'_>);

    /// Handles a batch of messages from this member.
    fn received(&self, core: &Arc<Core>, from: Holder, body: &Bytes);

    /// Performs the due actions, and returns the time of the next one.
    fn expire(&self, core: &Arc<Core>, now: Instant) -> Option<Instant>;

    /// Waits until the references have drained; `false` after the deadline.
    ///
    /// [`Input::Shutdown`] first releases all references that the application holds;
    /// [`Input::Quiesce`] keeps the references for functions that other workers call.
    fn drain(&self, core: &Arc<Core>, how: Input<'_>, deadline: Instant) -> bool;

    /// Ends all references; returns the forks that were left.
    fn end(&self, core: &Arc<Core>) -> Vec<Leak>;
}

pub(crate) type MethodBody = functions::MethodBody<CallContext>;

pub(crate) type Confirmation = Arc<Slot<Result<(), RpcError>>>;

/// Function that introduces device memory to a worker; see `DeviceLender`.
pub(crate) type Introduce = fn(&Arc<Core>, &Member, Vec<Bytes>);

/// State of an agent, without its driver.
pub(crate) struct Core {
    pub(crate) me: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) group: u64,
    host: String,
    pub(crate) token: Option<Token>,
    pub(crate) limits: FrameLimits,
    pub(crate) functions: Functions<CallContext>,
    pub(crate) pool: Pool,
    pub(crate) poller: Arc<LinkPoller>,
    pub(crate) peers: Peers,
    pub(crate) counters: Arc<Counters>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) references: Box<dyn References>,
    pub(crate) gathers: Gathers,
    pub(crate) transports: TransportOptions,
    pub(crate) backend: Arc<dyn DeviceBackend>,
    /// The group; `None` for agents that got their members in another way.
    view: RwLock<Option<Arc<GroupView>>>,
    members: RwLock<Arc<Members>>,
    /// Wakes threads that wait for a change of the members.
    pub(crate) group_changed: (Mutex<()>, Condvar),
    /// Default timeout in microseconds; 0 for none.
    timeout: AtomicU64,
    next_call: AtomicU64,
    /// Held by the thread that shuts the agent down.
    pub(crate) ending: LimitedMutex<()>,
    /// Function to call after the agent was stopped through a handle.
    pub(crate) on_stop: OnceLock<fn(&RpcAgent)>,
    /// Function that introduces device memory to a worker; see `DeviceLender`.
    pub(crate) introduce: OnceLock<Introduce>,
    /// Next deadline of the driver, in nanoseconds of the agent's clock.
    wake_at: AtomicU64,
    /// Next check of the other hosts, in the same unit.
    check_hosts_at: AtomicU64,
    pub(crate) rhythm: Rhythm,
}

/// Settings of an agent, except its methods.
pub(crate) struct Setup {
    pub(crate) me: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) group: u64,
    pub(crate) token: Option<Token>,
    pub(crate) limits: FrameLimits,
    pub(crate) timeout: Option<Duration>,
    pub(crate) worker_threads: usize,
    pub(crate) transports: TransportOptions,
    pub(crate) backend: Arc<dyn DeviceBackend>,
    pub(crate) references: Settings,
}

impl Core {
    /// Creates an agent with these functions and remote references.
    pub(crate) fn new(
        setup: Setup,
        functions: Functions<CallContext>,
        references: Box<dyn References>,
    ) -> std::io::Result<Arc<Self>> {
        let executor = Executor::new(setup.me.name.as_str(), setup.worker_threads)?;
        Ok(Arc::new(Self {
            me: setup.me,
            incarnation: setup.incarnation,
            group: setup.group,
            host: host_identity(),
            token: setup.token,
            limits: setup.limits,
            functions,
            pool: Pool::default(),
            poller: Arc::new(LinkPoller::new()?),
            peers: Peers::default(),
            counters: Arc::default(),
            in_flight: Arc::default(),
            executor: Arc::new(executor),
            references,
            gathers: Gathers::default(),
            rhythm: Rhythm::new(setup.transports.heartbeat_limit),
            transports: setup.transports,
            backend: setup.backend,
            view: RwLock::default(),
            members: RwLock::default(),
            group_changed: Default::default(),
            timeout: AtomicU64::new(limit_micros(setup.timeout)),
            next_call: AtomicU64::new(1),
            ending: LimitedMutex::default(),
            on_stop: OnceLock::new(),
            introduce: OnceLock::new(),
            wake_at: AtomicU64::new(u64::MAX),
            check_hosts_at: AtomicU64::new(u64::MAX),
        }))
    }

    /// Returns the identification that this worker sends to other workers.
    pub(crate) fn hello(&self) -> Hello {
        Hello {
            version: PROTOCOL,
            features: 0,
            worker: self.me.clone(),
            group: self.group,
            incarnation: self.incarnation,
            host: self.host.clone(),
            process: std::process::id(),
            wants_proof: self.token.is_some(),
            nonce: nonce(),
        }
    }

    /// Returns the process of the peer if its memory may be readable.
    pub(crate) fn local_process(&self, peer: &Hello, process: Option<Peer>) -> Option<Peer> {
        let same_host = !self.host.is_empty() && self.host == peer.host;
        process.filter(|_| same_host && self.transports.read_memory)
    }

    /// `true` if a member is on this host.
    pub(crate) fn is_here(&self, member: &Member) -> bool {
        member.peer_address.is_on(&self.host)
    }

    pub(crate) fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members.read())
    }

    /// Returns the group, with the devices of its members.
    pub(crate) fn view(&self) -> Option<Arc<GroupView>> {
        self.view.read().clone()
    }

    pub(crate) fn set_view(&self, view: Arc<GroupView>) {
        *self.view.write() = Some(view);
    }

    pub(crate) fn next_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        match self.timeout.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout.store(limit_micros(timeout), Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.in_flight.is_stopped()
    }

    pub(crate) fn stop(self: &Arc<Self>) {
        if self.in_flight.stop() {
            for leak in self.references.end(self) {
                tracing::warn!(worker = %self.me, holder = %leak.holder, "{leak}");
            }
        }
        self.poller.wake();
        self.notify_group_changed();
        self.gathers.stop();
    }

    /// Wakes the threads that wait for a change of the group.
    pub(crate) fn notify_group_changed(&self) {
        let (lock, changed) = &self.group_changed;
        // While this thread holds the lock, no thread is between its check and its wait.
        drop(lock.lock());
        changed.notify_all();
    }
}
