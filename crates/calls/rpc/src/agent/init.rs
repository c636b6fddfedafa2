//! Joining and leaving a group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rendezvous::Environment;
use rdzv_rpc_proto::device::DeviceData;
use rdzv_rpc_proto::directory::{GroupView, Member as Published};
use rdzv_rpc_proto::frame::FrameLimits;
use rdzv_rpc_proto::rref::Input;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use rdzv_store::Store;

use crate::call::methods::Methods;
use crate::device::{CpuOnly, DeviceBackend};
use crate::error::{RpcError, RpcErrorKind};
use crate::group::{Group, GroupChange, new_incarnation};
use crate::init_method::{check_size, open_store};
use crate::options::{DEFAULT_TIMEOUT, RpcOptions};
use crate::runtime::core::{Core, RpcAgent, Setup};
use crate::runtime::member::Member;
use crate::transport::{Listener, PeerAddress};

/// Builder for an [`RpcAgent`], which is a member of a group.
///
/// The builder collects the name, rank and methods of the worker, and the store of the group.
/// [`RpcAgent::builder`] creates it, and [`connect`](Self::connect) starts the agent.
#[derive(Debug, Clone)]
#[must_use = "nothing happens before `connect`"]
pub struct RpcAgentBuilder {
    name: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    store: Option<Arc<dyn Store>>,
    methods: Methods,
    options: RpcOptions,
    device_backend: Arc<dyn DeviceBackend>,
}

impl RpcAgent {
    /// Creates a builder for an agent whose worker has this name.
    ///
    /// A name consists of 1 to 127 letters, digits, `-`, `_` and `:`.
    ///
    /// Without [`rank`](RpcAgentBuilder::rank) and [`store`](RpcAgentBuilder::store), both come
    /// from [`RpcOptions::init_method`], by default from the environment that `rdzv run` gives its
    /// workers. The first page of the crate has an example.
    pub fn builder(name: impl Into<String>) -> RpcAgentBuilder {
        RpcAgentBuilder {
            name: name.into(),
            rank: None,
            world_size: None,
            store: None,
            methods: Methods::new(),
            options: RpcOptions::default(),
            device_backend: CpuOnly::shared(),
        }
    }
}

impl RpcAgentBuilder {
    /// Sets the rank of the worker, which is also its id.
    ///
    /// The default comes from the init method; `env://` uses `RANK`. The rank is required if
    /// [`store`](Self::store) is set.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Creates a static group with this number of workers.
    ///
    /// All workers join at the start and stay until shutdown. Without this setting, or with `None`,
    /// the group is dynamic: workers can join and leave at any time.
    pub fn world_size(mut self, workers: impl Into<Option<u32>>) -> Self {
        self.world_size = workers.into();
        self
    }

    /// Sets the store through which the group forms.
    ///
    /// The default is the store that [`RpcOptions::init_method`] specifies.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the functions that other workers can call (default: none).
    pub fn methods(mut self, methods: Methods) -> Self {
        self.methods = methods;
        self
    }

    /// Sets the options (default: [`RpcOptions::default`]).
    pub fn options(mut self, options: RpcOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the backend for accelerator memory (default: CPU only).
    pub fn device_backend(mut self, backend: Arc<dyn DeviceBackend>) -> Self {
        self.device_backend = backend;
        self
    }

    /// Rejects invalid arguments before the agent sends any message.
    fn check(&self) -> Result<WorkerName, RpcError> {
        let name = WorkerName::new(self.name.as_str())?;
        self.options.check()?;
        check_size(self.rank, self.world_size)?;
        if self.store.is_some() && self.rank.is_none() {
            return Err(RpcError::invalid(
                "a worker that passes a store must specify its rank: call `rank`",
            ));
        }
        Ok(name)
    }

    /// Starts the agent and joins the group.
    ///
    /// In a static group, this returns once all members have joined. In a dynamic group, it returns
    /// once all live members know this worker. The builder's arguments are checked before any
    /// message is sent. If the settings of the members of a static group conflict, usually all
    /// members get the error.
    ///
    /// A process can run several agents.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`], [`RpcErrorKind::DuplicateName`],
    /// [`RpcErrorKind::DuplicateId`], [`RpcErrorKind::GroupMismatch`], [`RpcErrorKind::DeviceMap`],
    /// [`RpcErrorKind::Deadline`] if members are missing, [`RpcErrorKind::PeerLost`] if a dynamic
    /// group removed this worker again, [`RpcErrorKind::Store`], and
    /// [`RpcErrorKind::Internal`] if the agent cannot listen or start its threads.
    pub fn connect(self) -> Result<RpcAgent, RpcError> {
        let name = self.check()?;
        let options = self.options;
        let transports = options.transport_options()?;
        let address = options.listening_address(self.store.as_deref());
        let token = match options.token {
            Some(token) => Some(token),
            None => {
                let credentials = Environment::of_process().credentials();
                credentials
                    .map_err(|error| RpcError::invalid(error.to_string()))?
                    .token
            }
        };
        let (store, rank) = match (self.store, self.rank) {
            (Some(store), Some(rank)) => (store, WorkerId(rank)),
            (_, rank) => {
                let opened = open_store(
                    &options.init_method,
                    rank,
                    self.world_size,
                    options.init_deadline,
                    Environment::of_process(),
                )?;
                (opened.store, opened.rank)
            }
        };
        let me = WorkerInfo { id: rank, name };
        let deaf = "this worker cannot listen";
        let listener = Listener::new(address, transports.clone());
        let listener = listener.map_err(RpcError::internal(deaf))?;
        let peer_address = listener.peer_address().map_err(RpcError::internal(deaf))?;
        let published = Published {
            info: me.clone(),
            address: postcard::to_stdvec(&peer_address).map_err(RpcError::internal(
                "cannot serialise the address of this worker",
            ))?,
            incarnation: new_incarnation(),
            device: DeviceData {
                device_count: self.device_backend.count(),
                device_maps: options.device_maps,
                devices: options.devices,
            },
        };
        let incarnation = published.incarnation;
        let within = options.init_deadline;
        // Members of a dynamic group see its epochs at different times.
        let (group, number) = match self.world_size {
            Some(world_size) => {
                let group = Group::form(store, published, world_size, within)?;
                let epoch = group.view().epoch();
                (group, epoch)
            }
            None => (Group::join(store, published, options.lease, within)?, 0),
        };
        let setup = Setup {
            me,
            incarnation,
            group: number,
            token,
            limits: FrameLimits {
                total: options.message_limit,
                ..FrameLimits::default()
            },
            timeout: options.timeout.limit(|| Some(DEFAULT_TIMEOUT))?,
            worker_threads: options.num_worker_threads as usize,
            transports,
            backend: self.device_backend,
            references: options.references,
        };
        // Other workers may call as soon as the agent listens, and functions may make calls.
        let agent = RpcAgent::start(setup, self.methods, listener, |core| {
            let core = Arc::downgrade(core);
            group.on_change(move |change| {
                let Some(core) = core.upgrade() else {
                    return;
                };
                match change {
                    GroupChange::View(view) => core.see(view),
                    GroupChange::Detached(error) => {
                        tracing::error!(
                            worker = %core.me, %error,
                            "lost the group: this worker receives no more changes"
                        );
                    }
                }
            });
        })?;
        if let Err(error) = group.await_confirmation(within) {
            // If the departure fails, the other members notice the expired lease.
            let _ = group.leave();
            return Err(error);
        }
        agent.set_group(group);
        Ok(agent)
    }
}

impl RpcAgent {
    /// Shuts the agent down gracefully, and stops it even after an error.
    ///
    /// The agent accepts no new calls from the application, and waits for its calls in flight. In a
    /// static group it then waits for the other members; in a dynamic group it leaves. This returns
    /// immediately if the agent has already stopped. If another thread is already shutting the
    /// agent down, this waits for that thread.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::Deadline`] if calls are still running, or members have not arrived, after
    /// `within`. The error names these workers. The kind is the same if another thread is still
    /// shutting the agent down after `within`; that thread then stops the agent.
    /// [`RpcErrorKind::Store`] if the store fails.
    pub fn shutdown(&self, within: Duration) -> Result<(), RpcError> {
        let deadline = Instant::now() + within;
        let Some(_ending) = self.core().ending.try_lock_before(deadline) else {
            let text = format!(
                "another thread is shutting this worker down and did not finish within {} s",
                within.as_secs_f64()
            );
            return Err(RpcError::new(RpcErrorKind::Deadline, text));
        };
        if self.core().is_stopped() {
            return Ok(());
        }
        self.core().in_flight.begin_to_drain();
        let waits_for = self.core().peers.busy();
        if !waits_for.is_empty()
            && let Err(error) = self.waits_for(&waits_for)
        {
            tracing::debug!(
                worker = %self.me(), %error,
                "cannot record the workers for which this worker waits"
            );
        }
        let drained = self.core().in_flight.drain(deadline);
        let core = self.core();
        // A worker is also busy if calls wait for a connection to it.
        let stuck: Vec<WorkerInfo> = core
            .peers
            .busy()
            .into_iter()
            .filter_map(|id| Some(core.members().get(&id)?.info.clone()))
            .collect();
        // Until all members of a static group have arrived, other members may call functions of
        // this worker and use values that it holds. A worker that leaves a dynamic group gives its
        // references back.
        let stays = self.is_in_static_group();
        let how = if stays {
            Input::Quiesce
        } else {
            Input::Shutdown
        };
        if !core.references.drain(core, how, deadline) {
            tracing::warn!(
                worker = %self.me(),
                "Timed out waiting for pending UserRRefs to be confirmed by owner and parent."
            );
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let met = match self.take_group() {
            // A worker that has missed its deadline does not wait for the others; it only leaves a
            // dynamic group.
            Some(group) if drained => group.shutdown_barrier(left),
            Some(group) => group.leave(),
            None => Ok(()),
        };
        if stays && drained && met.is_ok() {
            // All other workers end as well, so the values that they still hold are no leak.
            drop(core.references.end(core));
        }
        self.stop();
        if !drained {
            let within = within.as_secs_f64();
            return Err(RpcError::late(&stuck, |names| {
                format!("calls to {names} did not finish within {within} s and were cancelled")
            }));
        }
        met
    }
}

impl Core {
    fn see(self: &Arc<Self>, view: &Arc<GroupView>) {
        let mut members = crate::runtime::member::Members::new();
        for member in view.members() {
            match postcard::from_bytes::<PeerAddress>(&member.address) {
                Ok(peer_address) => {
                    let member = Member {
                        info: member.info.clone(),
                        incarnation: member.incarnation,
                        peer_address,
                    };
                    members.insert(member.info.id, member);
                }
                Err(error) => {
                    tracing::error!(
                        worker = %member.info, %error,
                        "cannot parse the address of a worker"
                    );
                }
            }
        }
        self.set_view(Arc::clone(view));
        self.set_members(members);
    }
}
