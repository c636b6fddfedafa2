//! Becoming a member of a group, and leaving it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rendezvous::Environment;
use rdzv_rpc_proto::device::DeviceData;
use rdzv_rpc_proto::directory::{GroupView, Member as Published};
use rdzv_rpc_proto::frame::Limits;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use rdzv_store::Store;

use crate::call::methods::Methods;
use crate::device::{CpuOnly, DeviceBackend};
use crate::error::{RpcError, RpcErrorKind};
use crate::group::{DEFAULT_LEASE, Group, GroupChange, new_incarnation};
use crate::options::{check_heartbeat_limit, check_worker_threads};
use crate::rref::ReferenceSettings;
use crate::runtime::core::{Core, RpcAgent, Setup};
use crate::runtime::member::Member;
use crate::transport::{Contact, Listener, Token, TransportOptions};

/// Which group a worker becomes a member of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// A group of so many workers, which all come at the beginning and stay until the end.
    Static {
        /// How many there are.
        world_size: u32,
    },
    /// A group whose workers come and go. One that dies is known to be gone after the lease.
    Dynamic {
        /// How long it counts as a member after it was last heard of. Default: 5 s.
        lease: Duration,
    },
}

/// What a worker brings along.
pub struct AgentOptions {
    /// How long a call may take that does not say so itself; `None` for as long as it takes.
    /// Default: 60 s.
    pub timeout: Option<Duration>,
    /// How long forming or joining the group may take. Default: 300 s.
    pub init_deadline: Duration,
    /// How many blocking functions run at the same time at the most. Default: 16.
    pub worker_threads: usize,
    /// How bytes travel.
    pub transports: TransportOptions,
    /// A secret of the job; a worker that does not have it is refused. Default: the token in the file that
    /// RDZV_JOB_TOKEN_FILE names, as agents set it for the workers of a job with a token; else none.
    pub token: Option<Token>,
    /// Devices, and which of them is which device of others.
    pub devices: DeviceData,
    /// How memory of devices is handled. Default: there is only the CPU.
    pub backend: Arc<dyn DeviceBackend>,
    /// How patient remote references are with workers that cannot be reached, and the like.
    pub references: ReferenceSettings,
    /// How large a message may be. Default: 64 MiB of values, 4 GiB with tensors.
    pub limits: Limits,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_secs(60)),
            init_deadline: Duration::from_secs(300),
            worker_threads: 16,
            transports: TransportOptions::default(),
            token: None,
            devices: DeviceData::default(),
            backend: CpuOnly::shared(),
            references: ReferenceSettings::default(),
            limits: Limits::default(),
        }
    }
}

impl Membership {
    /// A dynamic group with the default lease of 5 s.
    pub fn dynamic() -> Self {
        Self::Dynamic {
            lease: DEFAULT_LEASE,
        }
    }
}

impl RpcAgent {
    /// Starts an agent and makes it a member of the group that meets in the store.
    ///
    /// In a static group this returns when all members are there; in a dynamic one when this worker
    /// has joined. What is wrong with the arguments is told before anything is sent; what does not fit
    /// together in the group is told to all its members.
    ///
    /// A process may have several agents.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`], [`RpcErrorKind::DuplicateName`],
    /// [`RpcErrorKind::DuplicateId`], [`RpcErrorKind::GroupMismatch`], [`RpcErrorKind::DeviceMap`],
    /// [`RpcErrorKind::Deadline`] if members are missing, [`RpcErrorKind::Store`].
    pub fn init(
        name: &str,
        rank: u32,
        membership: Membership,
        store: Arc<dyn Store>,
        methods: Methods,
        options: AgentOptions,
    ) -> Result<Self, RpcError> {
        let me = WorkerInfo {
            id: WorkerId(rank),
            name: WorkerName::new(name).map_err(|error| RpcError::invalid(error.to_string()))?,
        };
        let token = match options.token {
            Some(token) => Some(token),
            None => {
                let credentials = Environment::of_process().credentials();
                credentials
                    .map_err(|error| RpcError::invalid(error.to_string()))?
                    .token
            }
        };
        check_worker_threads(options.worker_threads)?;
        check_heartbeat_limit(options.transports.heartbeat_limit)?;
        let refused = |error: crate::transport::TransportError| {
            RpcError::new(
                RpcErrorKind::Internal,
                format!("this worker cannot listen: {error}"),
            )
        };
        let listener = Listener::new(options.transports.clone()).map_err(refused)?;
        let contact = listener.contact().map_err(refused)?;
        let published = Published {
            info: me.clone(),
            address: postcard::to_stdvec(&contact).map_err(|error| {
                RpcError::new(
                    RpcErrorKind::Internal,
                    format!("cannot write the contact: {error}"),
                )
            })?,
            incarnation: new_incarnation(),
            device: options.devices,
        };
        let incarnation = published.incarnation;
        let group = match membership {
            Membership::Static { world_size } => {
                Group::form(store, published, world_size, options.init_deadline)?
            }
            Membership::Dynamic { lease } => {
                Group::join(store, published, lease, options.init_deadline)?
            }
        };
        let setup = Setup {
            me,
            incarnation,
            // Members of a dynamic group see its epochs at different times.
            group: match membership {
                Membership::Static { .. } => group.view().epoch(),
                Membership::Dynamic { .. } => 0,
            },
            token,
            limits: options.limits,
            methods,
            timeout: options.timeout,
            worker_threads: options.worker_threads,
            transports: options.transports,
            backend: options.backend,
            references: options.references,
        };
        // Others may call as soon as it listens, and functions call on.
        let agent = Self::start(setup, listener, |core| core.see(&group.view()))?;
        let core = Arc::downgrade(agent.core());
        group.on_change(move |change| {
            let Some(core) = core.upgrade() else {
                return;
            };
            match change {
                GroupChange::View(view) => core.see(view),
                GroupChange::Detached(error) => {
                    tracing::error!(worker = %core.me, %error, "lost the group: it sees no changes any more");
                }
            }
        });
        agent.set_group(group);
        Ok(agent)
    }

    /// Shuts down in good order: makes no more calls, waits until those it has made are over, meets
    /// the other members (in a static group) or leaves (a dynamic one), and stops. Whatever happens,
    /// the agent is stopped in the end. If it is stopped already, nothing happens; if another thread shuts
    /// it down, this waits for that.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::Deadline`] if calls were not over, or members had not come, in this time; it
    /// names them.
    pub fn shutdown(&self, within: Duration) -> Result<(), RpcError> {
        let until = Instant::now() + within;
        let Some(_ending) = self.core().ending.try_lock_until(until) else {
            let text = format!(
                "another thread shuts this worker down and was not done within {} s",
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
            tracing::debug!(worker = %self.me(), %error, "could not say whom it waits for");
        }
        let drained = self.core().in_flight.drain(Some(until));
        let core = self.core();
        // A worker that is being connected to has calls that wait for that.
        let stuck: Vec<WorkerInfo> = core
            .peers
            .busy()
            .into_iter()
            .filter_map(|id| Some(core.members().get(&id)?.info.clone()))
            .collect();
        // Until all members of a static group are here, functions of this one are called and use what it
        // holds, whoever has it. One that leaves a dynamic group gives it back.
        let stays = self.is_in_static_group();
        let at_rest = match stays {
            true => core.references.rest(core, until),
            false => core.references.shut_down(core, until),
        };
        if !at_rest {
            tracing::warn!(
                worker = %self.me(),
                "Timed out waiting for pending UserRRefs to be confirmed by owner and parent."
            );
        }
        let left = until.saturating_duration_since(Instant::now());
        let met = match self.take_group() {
            // Nobody is kept waiting by a worker that knows that it will be late.
            Some(group) if drained => group.shutdown_barrier(left),
            Some(group) => group.leave(),
            None => Ok(()),
        };
        if stays && drained && met.is_ok() {
            // All others end as well: what they hold still is no leak.
            drop(core.references.end(core));
        }
        self.stop();
        if !drained {
            let text = format!(
                "calls were not over within {} s and were given up: to {}",
                within.as_secs_f64(),
                stuck
                    .iter()
                    .map(|worker| format!("{} (rank {})", worker.name, worker.id))
                    .collect::<Vec<_>>()
                    .join(", ")
            );
            let error = RpcError::new(RpcErrorKind::Deadline, text);
            return Err(match &stuck[..] {
                [worker] => error.with_worker(worker.clone()),
                _ => error,
            });
        }
        met
    }
}

impl Core {
    /// Takes over what is known of the group now.
    fn see(self: &Arc<Self>, view: &Arc<GroupView>) {
        let mut members = crate::runtime::member::Members::new();
        for member in view.members() {
            match postcard::from_bytes::<Contact>(&member.address) {
                Ok(contact) => {
                    let member = Member {
                        info: member.info.clone(),
                        incarnation: member.incarnation,
                        contact,
                    };
                    members.insert(member.info.id, member);
                }
                Err(error) => {
                    tracing::error!(worker = %member.info, %error, "its address cannot be read");
                }
            }
        }
        self.set_view(Arc::clone(view));
        self.set_members(members);
    }
}
