//! What the parts of an agent share.
//!
//! | file | what |
//! |---|---|
//! | here | what an agent is made of, and where its functions run |
//! | [`life`] | it runs, drains and is stopped |
//! | [`news`] | what it is told of other workers |

mod life;
mod news;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use rdzv_rpc_proto::directory::GroupView;
use rdzv_rpc_proto::frame::Limits;
use rdzv_rpc_proto::frame::hello::{Hello, PROTOCOL};
use rdzv_rpc_proto::heartbeat::Rhythm;
use rdzv_rpc_proto::rref::Member as Holder;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo};
use rdzv_shm::Pool;
use rdzv_shm::pass::Peer;

use self::life::RUNNING;
use super::RpcAgent;
use super::counters::Counters;
use super::gather::leader::{self, Gathers};
use super::peers::Peers;
use super::poller::Poller;
use super::turns::Turns;
use super::under_way::UnderWay;
use crate::call::methods::Methods;
use crate::device::DeviceBackend;
use crate::rref::{self, ReferenceSettings, Register};
use crate::transport::contact::host_identity;
use crate::transport::{Contact, Token, TransportOptions};
use rdzv_trust::token::nonce;

pub(crate) use self::life::OnItsWay;

/// A member of the group, as far as calls to it need it.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) info: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) contact: Contact,
}

/// The members of the group by id.
impl Member {
    /// As the references know it.
    pub(crate) fn holder(&self) -> Holder {
        Holder {
            id: self.info.id,
            incarnation: self.incarnation,
        }
    }
}

pub(crate) type Members = BTreeMap<WorkerId, Member>;

/// So many large parts are read at the same time although all functions that may run do.
const READERS: usize = 4;
/// An agent without its threads.
pub(crate) struct Core {
    pub(crate) me: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) group: u64,
    pub(crate) host: String,
    pub(crate) token: Option<Token>,
    pub(crate) limits: Limits,
    pub(crate) methods: Methods,
    pub(crate) pool: Pool,
    pub(crate) poller: Arc<Poller>,
    pub(crate) peers: Peers,
    pub(crate) counters: Counters,
    pub(crate) references: Register,
    pub(crate) gathers: Gathers,
    pub(crate) transports: TransportOptions,
    pub(crate) backend: Arc<dyn DeviceBackend>,
    /// The group; none for agents that were told of their members in another way.
    view: RwLock<Option<Arc<GroupView>>>,
    runtime: Mutex<Option<tokio::runtime::Runtime>>,
    handle: tokio::runtime::Handle,
    turns: Turns,
    pub(crate) under_way: UnderWay,
    members: RwLock<Arc<Members>>,
    /// For those who wait for other members than there are.
    pub(super) group_changed: (Mutex<()>, Condvar),
    /// Microseconds; 0 for none.
    timeout: AtomicU64,
    next_call: AtomicU64,
    state: AtomicU8,
    /// Held by whoever shuts it down.
    pub(super) ending: Mutex<()>,
    /// When the driver has to look at deadlines, in nanoseconds of the agent's clock.
    pub(super) wake_at: AtomicU64,
    /// When it has to look whether other hosts are there; the same.
    pub(super) look_at: AtomicU64,
    pub(crate) rhythm: Rhythm,
    in_flight: AtomicUsize,
    idle: (Mutex<()>, Condvar),
    myself: Weak<Core>,
}

/// What an agent is made of.
pub(crate) struct Setup {
    pub(crate) me: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) group: u64,
    pub(crate) token: Option<Token>,
    pub(crate) limits: Limits,
    pub(crate) methods: Methods,
    pub(crate) timeout: Option<Duration>,
    pub(crate) worker_threads: usize,
    pub(crate) transports: TransportOptions,
    pub(crate) backend: Arc<dyn DeviceBackend>,
    pub(crate) references: ReferenceSettings,
}

impl Core {
    pub(crate) fn new(setup: Setup) -> std::io::Result<Arc<Self>> {
        let name = setup.me.name.clone();
        let holder = Holder {
            id: setup.me.id,
            incarnation: setup.incarnation,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(setup.worker_threads.saturating_add(READERS))
            .thread_name(format!("rpc:{name}"))
            .enable_time()
            .build()?;
        let handle = runtime.handle().clone();
        let poller = Arc::new(Poller::new()?);
        Ok(Arc::new_cyclic(|myself| Self {
            me: setup.me,
            incarnation: setup.incarnation,
            group: setup.group,
            host: host_identity(),
            token: setup.token,
            limits: setup.limits,
            methods: leader::offered(rref::offered(setup.methods)),
            pool: Pool::default(),
            poller,
            peers: Peers::default(),
            counters: Counters::default(),
            references: Register::new(holder, setup.references),
            gathers: Gathers::default(),
            rhythm: Rhythm::new(setup.transports.heartbeat_limit),
            transports: setup.transports,
            backend: setup.backend,
            view: RwLock::default(),
            runtime: Mutex::new(Some(runtime)),
            handle,
            turns: Turns::new(setup.worker_threads),
            under_way: UnderWay::default(),
            members: RwLock::default(),
            group_changed: Default::default(),
            timeout: AtomicU64::new(micros(setup.timeout)),
            next_call: AtomicU64::new(1),
            state: AtomicU8::new(RUNNING),
            ending: Mutex::default(),
            wake_at: AtomicU64::new(u64::MAX),
            look_at: AtomicU64::new(u64::MAX),
            in_flight: AtomicUsize::new(0),
            idle: (Mutex::new(()), Condvar::new()),
            myself: myself.clone(),
        }))
    }

    /// A handle for functions that are called: it does not keep the agent running.
    pub(crate) fn handle(&self) -> RpcAgent {
        let core = self.myself.upgrade();
        RpcAgent::borrowed(core.expect("a core is only ever used inside of its Arc"))
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.myself.clone()
    }

    /// What this worker says of itself when it meets another one.
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

    /// The process at the other end, if its memory may be in reach.
    pub(crate) fn near(&self, peer: &Hello, process: Option<Peer>) -> Option<Peer> {
        let same_host = !self.host.is_empty() && self.host == peer.host;
        process.filter(|_| same_host && self.transports.read_memory)
    }

    pub(crate) fn members(&self) -> Arc<Members> {
        let members = self.members.read();
        Arc::clone(&members)
    }

    /// The group, with the devices of its members.
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
        self.timeout.store(micros(timeout), Ordering::Relaxed);
    }

    /// Runs a function that takes a thread, when it is its turn.
    pub(crate) fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        let first = self.turns.enter(Box::new(work));
        if let (Some(first), Some(core)) = (first, self.myself.upgrade()) {
            self.handle.spawn_blocking(move || core.turns.work(first));
        }
    }

    /// Reads what is large, on a thread that no function keeps.
    pub(crate) fn spawn_reading(&self, work: impl FnOnce() + Send + 'static) {
        self.handle.spawn_blocking(work);
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    pub(crate) fn enter_runtime(&self) -> tokio::runtime::EnterGuard<'_> {
        self.handle.enter()
    }
}

fn micros(timeout: Option<Duration>) -> u64 {
    timeout.map_or(0, |timeout| {
        u64::try_from(timeout.as_micros())
            .unwrap_or(u64::MAX)
            .max(1)
    })
}
