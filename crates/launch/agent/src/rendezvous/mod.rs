//! Agent's side of the rendezvous.
//!
//! It joins the other agents, exchanges ranks with them, and provides the workers' store.
//!
//! | step | one node (`single_node`) | several, or a backend (`backend_thread`) |
//! |---|---|---|
//! | join | the agent's own server | the static backend, or one of the registry |
//! | purge | every key | static, one node: all keys but the agents'; otherwise none |
//! | exchange | with itself, through a store in memory | none, or through the store of the round |
//! | failures of others | – | the backend reports them |
//! | exit barrier | – | that of the backend, or through the store of the round |
//! | end | – | closes the run, or leaves it to the other nodes |
//!
//! There is no exchange if the backend knows the ranks, or if all nodes have the same role and
//! number of workers (`identical_workers`). Otherwise `rank_exchange` does it.
//!
//! All code here that may wait for other nodes runs on separate threads and answers through a
//! channel. The agent's loop therefore waits only for events.

mod backend_thread;
mod preemption;
mod rank_exchange;
mod single_node;

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_agent_proto::group::{Round, WorkerRanks, barrier};
use rdzv_core::ident::RunId;
use rdzv_core::rank::{Assignment, GroupRank, RoleInfo};
use rdzv_rendezvous::{
    Change, JoiningAgent, Recorder, RendezvousEvent, StaticParameters, StaticRendezvous,
};
use rdzv_store::{HashStore, Pinger};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::config::{MasterPort, NodeCheckPlan, RendezvousPlan};
use crate::error::system;
use crate::health::{Liveness, Watched};
use crate::round_store::RoundStore;
use crate::{AgentConfig, AgentError, host, node_check};
use backend_thread::{BackendHandle, JoinedRound, NewBackend};
pub use rank_exchange::by_store as exchange_ranks;
use single_node::LocalRendezvous;

/// Part of the error for a thread that cannot be started.
const NO_THREAD: &str = "start a thread for the rendezvous";

/// Name of the thread of the workers' store in the health check.
const STORE_SERVER: &str = "store server";

fn in_memory() -> RoundStore {
    RoundStore::new(Arc::new(HashStore::new()))
}

/// Answer to a request, or an event, sent to the agent's loop later.
pub(crate) enum Answer {
    /// Answer to [`RendezvousHandle::join`]; input of [`RendezvousHandle::joined`].
    Joined(Result<Joined, AgentError>),
    /// Answer to [`RendezvousHandle::check`]: this node may join.
    Fit,
    /// Answer to [`RendezvousHandle::join`]: the job has ended without this node.
    /// The text is the reason.
    NotNeeded(String),
    /// Answer to [`RendezvousHandle::assign`].
    Assigned {
        /// Number of joins before the request.
        join: u64,
        result: Result<Assignment, AgentError>,
    },
    /// Answer to [`RendezvousHandle::wait_for_others`].
    BarrierPassed {
        /// Number of joins before the request.
        join: u64,
        /// The error, and the limit if it has ended the wait.
        result: Result<(), (String, Option<Duration>)>,
    },
    /// Event: a change of the other nodes, or of the rendezvous.
    Changed(Change),
    /// Event: the agent with rank `by` received this preemption signal.
    /// The scheduler will take the nodes away.
    Preempted { signal: i32, by: GroupRank },
    /// Event: the rendezvous recorded an event.
    Recorded(RendezvousEvent),
}

/// Reason for which this node leaves, and its effect on the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    /// The workers here have succeeded and the exit barrier is over: the run ends.
    Succeeded,
    /// The run is over for all nodes.
    /// `reason` is for nodes that do not know it yet.
    Failed { reason: Option<String> },
    /// The other nodes may continue.
    Left,
    /// The other nodes may continue; a process around this agent was killed.
    Killed,
}

/// Result of a complete rendezvous.
pub(crate) struct Joined {
    pub(crate) round: Round,
    /// State to keep; `None` without a backend.
    state: Option<Box<JoinedRound>>,
}

/// Agent's side of the rendezvous.
pub(crate) struct RendezvousHandle {
    us: RoleInfo,
    identical_workers: bool,
    exit_barrier_timeout: Option<Duration>,
    run_id: RunId,
    local: LocalRendezvous,
    /// `None` for [`RendezvousPlan::Local`].
    backend: Option<BackendHandle>,
    /// Number of joins that the agent has requested.
    joins: u64,
    /// Ranks that the next join reports as lost.
    lost: Vec<u32>,
    /// `true` if agents notify each other of preemption.
    hears_notices: bool,
    /// Store through which agents exchange their ranks.
    store: RoundStore,
    answers: UnboundedSender<Answer>,
    liveness: Liveness,
    /// Threads that the current round needs.
    watched: Vec<Watched>,
}

impl RendezvousHandle {
    pub(crate) fn new(config: &AgentConfig, answers: UnboundedSender<Answer>) -> Self {
        let mut rank = GroupRank(0);
        let mut share_store = config.rendezvous.share_store;
        let new_backend: Option<NewBackend> = match config.rendezvous.plan.clone() {
            RendezvousPlan::Local => None,
            RendezvousPlan::Static {
                endpoint,
                node_rank,
                nodes,
                timeout,
            } => {
                rank = node_rank;
                share_store = true;
                let parameters = StaticParameters {
                    endpoint,
                    node_rank,
                    nodes,
                    timeout,
                    run_id: config.identity.run_id.clone(),
                    policy: config.rendezvous.store_policy.clone(),
                };
                Some(Box::new(move || {
                    let rendezvous = StaticRendezvous::new(parameters.clone());
                    Ok(Box::new(rendezvous.named(host::name_so_far())))
                }))
            }
            RendezvousPlan::Dynamic { parameters } => {
                let backends = config.rendezvous.backends.clone();
                let recorded = answers.clone();
                let recorder: Recorder = Arc::new(move |event| {
                    let _ = recorded.send(Answer::Recorded(event));
                });
                Some(Box::new(move || {
                    backends.create_recorded(&parameters, Arc::clone(&recorder))
                }))
            }
        };
        let member = JoiningAgent {
            role: config.identity.role.clone(),
            local_world_size: config.identity.local_world_size,
            share_store,
            master_port: match config.rendezvous.master_port {
                MasterPort::Fixed(port) => Some(port),
                // A kept socket is for one node only.
                MasterPort::Free | MasterPort::Kept(_) => None,
            },
            lost: Vec::new(),
        };
        Self {
            us: RoleInfo {
                role: config.identity.role.clone(),
                rank,
                local_world_size: config.identity.local_world_size,
            },
            identical_workers: config.rendezvous.identical_workers,
            exit_barrier_timeout: config.rendezvous.exit_barrier_timeout,
            run_id: config.identity.run_id.clone(),
            local: LocalRendezvous::new(&config.rendezvous),
            backend: new_backend
                .map(|new_backend| BackendHandle::new(new_backend, member, answers.clone())),
            joins: 0,
            lost: Vec::new(),
            hears_notices: config.preemption.is_some(),
            // Without peers, the agent exchanges ranks with itself.
            store: in_memory(),
            answers,
            liveness: config.observe.liveness.clone(),
            watched: Vec::new(),
        }
    }

    /// Sets the ranks that the next join reports as lost.
    pub(crate) fn lost(&mut self, ranks: Vec<u32>) {
        self.lost = ranks;
    }

    /// Runs the check of this node; the answer is [`Answer::Fit`].
    /// If the check fails, the answer is [`Answer::Joined`] with an error.
    pub(crate) fn check(&self, plan: NodeCheckPlan) {
        let answers = self.answers.clone();
        tokio::task::spawn_local(async move {
            let _ = answers.send(match node_check::check(&plan).await {
                Ok(()) => Answer::Fit,
                Err(error) => Answer::Joined(Err(error)),
            });
        });
    }

    pub(crate) fn join(&mut self) {
        self.joins += 1;
        // A join has separate limits on its waits, and may end threads of an earlier join.
        self.watched.clear();
        // From now on, no code may use parts of the previous round.
        self.store = in_memory();
        let Some(backend) = &mut self.backend else {
            let round = self.local.round();
            self.answer(Answer::Joined(
                round.map(|round| Joined { round, state: None }),
            ));
            return;
        };
        if let Err(source) = backend.join(std::mem::take(&mut self.lost)) {
            self.answer(Answer::Joined(Err(system(NO_THREAD)(source))));
        }
    }

    /// Stores the result of a rendezvous, and returns its round.
    pub(crate) fn joined(&mut self, joined: Joined) -> Round {
        if let (Some(round), Some(backend)) = (joined.state, &mut self.backend) {
            self.store = round.store.clone();
            self.us.rank = round.info.rank;
            backend.joined(round);
            if self.hears_notices {
                preemption::listen(&self.store, self.answers.clone());
            }
        }
        self.watched = self
            .threads()
            .into_iter()
            .map(|(name, pinger)| self.liveness.watch(name, pinger))
            .collect();
        joined.round
    }

    /// Returns the backend's round that this node is in.
    fn round(&self) -> Option<&JoinedRound> {
        self.backend.as_ref()?.round.as_deref()
    }

    /// Returns the threads that the current round needs.
    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        match &self.backend {
            Some(backend) => backend.threads(),
            None => Vec::from_iter(self.local.pinger().map(|pinger| (STORE_SERVER, pinger))),
        }
    }

    /// Returns this node's rank among the agents, from the last rendezvous.
    pub(crate) fn group_rank(&self) -> GroupRank {
        self.us.rank
    }

    /// Returns the number of agents in the backend's round, or 0 outside a round.
    pub(crate) fn group_world_size(&self) -> u32 {
        self.round().map_or(0, |round| round.info.world_size)
    }

    /// Returns the store of the current round.
    pub(crate) fn round_store(&self) -> RoundStore {
        self.store.clone()
    }

    /// Returns `true` if an answer belongs to a request since the last join.
    pub(crate) fn is_current(&self, join: u64) -> bool {
        self.joins == join
    }

    pub(crate) fn purge(&mut self) {
        match &self.backend {
            Some(backend) => backend.purge(&self.run_id),
            None => self.local.purge(),
        }
    }

    pub(crate) fn assign(&mut self, round: &Round) {
        let (agents, join) = (round.group_world_size, self.joins);
        let given = self.round().and_then(|round| round.info.assignment);
        let result = if let Some(assignment) = given {
            Ok(assignment)
        } else if self.identical_workers {
            Ok(rank_exchange::without_store(&self.us, agents))
        } else if self.backend.is_none() {
            self.exchange_ranks(agents)()
        } else {
            let exchange = self.exchange_ranks(agents);
            self.apart("ranks", move || Answer::Assigned {
                join,
                result: exchange(),
            });
            return;
        };
        self.answer(Answer::Assigned { join, result });
    }

    fn exchange_ranks(
        &self,
        agents: u32,
    ) -> impl FnOnce() -> Result<Assignment, AgentError> + Send + 'static {
        let (store, us) = (self.store.clone(), self.us.clone());
        move || rank_exchange::by_store(&*store.of_agent()?, &us, agents)
    }

    /// Returns the reserved port for the worker that hosts the store.
    /// The caller drops it once that worker has been started.
    pub(crate) fn release_port(&mut self, ranks: &WorkerRanks) -> Option<Arc<TcpListener>> {
        match &mut self.backend {
            _ if ranks.rank.0 != 0 => None,
            Some(backend) => backend.round.as_mut()?.info.reserved_port.take(),
            None => self.local.release_port().map(Arc::new),
        }
    }

    /// Announces to the other nodes that this node failed permanently.
    pub(crate) fn announce(&mut self, reason: String) {
        if let Some(backend) = &self.backend {
            backend.announce(reason);
        }
    }

    pub(crate) fn announce_preemption(&mut self, signal: i32) {
        if self.backend.is_some() {
            preemption::announce(&self.store, signal, self.us.rank);
        }
    }

    /// Waits until the workers of all agents have succeeded.
    pub(crate) fn wait_for_others(&mut self, agents: u32) {
        let (join, timeout) = (self.joins, self.exit_barrier_timeout);
        let pass = self.round().and_then(|round| round.exit_barrier.clone());
        if let (None, Some(backend)) = (&pass, &self.backend) {
            backend.succeeded();
        }
        let store = self.store.clone();
        self.apart("exit barrier", move || {
            let began = Instant::now();
            let passed = match pass {
                Some(pass) => pass(timeout).map_err(|error| error.to_string()),
                None => store
                    .of_agent()
                    .and_then(|store| {
                        let timeout = timeout.unwrap_or(Duration::MAX);
                        store.barrier(barrier::TERMINAL_STATE, agents, Some(timeout))
                    })
                    .map_err(|error| error.to_string()),
            };
            let limit = timeout.filter(|timeout| began.elapsed() >= *timeout);
            let result = passed.map_err(|error| (error, limit));
            Answer::BarrierPassed { join, result }
        });
    }

    /// Leaves the other nodes; the receiver gets a message after that.
    pub(crate) fn leave(&mut self, reason_to_leave: LeaveReason) -> Option<oneshot::Receiver<()>> {
        self.store = in_memory();
        self.watched.clear();
        self.backend.as_mut()?.leave(reason_to_leave)
    }

    /// Runs work that may wait for other nodes, on a separate thread.
    fn apart(&self, name: &str, work: impl FnOnce() -> Answer + Send + 'static) {
        let answers = self.answers.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = answers.send(work());
        });
        if let Err(source) = thread {
            self.answer(Answer::Joined(Err(system(NO_THREAD)(source))));
        }
    }

    fn answer(&self, answer: Answer) {
        // Only an agent that is ending has no receiver any more.
        let _ = self.answers.send(answer);
    }
}
