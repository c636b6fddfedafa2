//! The agent's side of the rendezvous: joining the other agents, exchanging ranks with them, and the
//! workers' store.
//!
//! | step | one node (`single_node`) | static (`static_nodes`) | nodes come and go (`backend_thread`) |
//! |---|---|---|---|
//! | join | the agent's own server, from the first attempt on | node 0's store, joined once | a backend of the registry, a new round each time |
//! | purge | every key | every key but the agents', if there is one node | the backend's business |
//! | exchange | with itself, through a store in memory | through the store, keys below the run id (`rank_exchange`) | none if the backend knows the ranks, else through the store of the round |
//! | failures of others | – | a key per node that it waits for (`failure_channel`), and a run at the coordinator in node 0's server (`node_watch`) | the backend reports |
//! | exit barrier | – | through the store | through the store of the round |
//! | end | – | waits for those who still read | closes the run, or leaves it to the others |
//!
//! Everything here that may wait for others does so on a thread of its own and answers through a
//! channel, so that the agent's loop never waits for anything but events.

mod backend_thread;
mod failure_channel;
mod node_watch;
mod rank_exchange;
mod single_node;
mod static_nodes;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rdzv_agent_proto::group::{Master, Round, WorkerRanks, barrier};
use rdzv_core::rank::{Assignment, GroupRank, RoleInfo};
use rdzv_rendezvous::{Change, Member, RendezvousEvent, RendezvousInfo, StaticParameters};
use rdzv_store::{HashStore, Pinger, Store, StoreError};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tracing::warn;

use crate::health::{Liveness, Watched};
use crate::{AgentConfig, AgentError, MasterPort, RendezvousPlan};
use backend_thread::{DynamicRendezvous, JoinedRound};
use failure_channel::FailureChannel;
use node_watch::NodeWatch;
use single_node::LocalRendezvous;
use static_nodes::StaticNodes;

/// The name of the thread of the workers' store in the health check.
const STORE_SERVER: &str = "store server";

/// What comes back, some time later.
pub(crate) enum Answer {
    /// To [`RendezvousHandle::join`]: for [`RendezvousHandle::joined`].
    Joined(Result<Joined, AgentError>),
    /// To [`RendezvousHandle::join`]: the job has ended without this node; why, in words.
    NotNeeded(String),
    /// To [`RendezvousHandle::assign`].
    Assigned {
        /// How many joins there had been.
        join: u64,
        result: Result<Assignment, AgentError>,
    },
    /// To [`RendezvousHandle::wait_for_others`].
    BarrierPassed(Result<(), StoreError>),
    /// To nothing: a change among the other nodes.
    Changed(Change),
    /// To nothing: the rendezvous has recorded something.
    Recorded(RendezvousEvent),
}

/// What the other nodes are left with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    /// All nodes have succeeded: the run is over.
    Succeeded,
    /// The run is over for all; the reason is for those who do not know it yet.
    Failed { reason: Option<String> },
    /// The others may go on.
    Left,
}

/// A rendezvous that is complete.
pub(crate) struct Joined {
    pub(crate) round: Round,
    state: JoinedState,
}

/// What there is to keep of a rendezvous.
enum JoinedState {
    Nothing,
    Static(Box<StaticNodes>),
    Dynamic(Box<JoinedRound>),
}

/// The agent's side of the rendezvous.
pub(crate) struct RendezvousHandle {
    us: RoleInfo,
    identical_workers: bool,
    local: LocalRendezvous,
    /// `None` without a static rendezvous.
    parameters: Option<StaticParameters>,
    static_nodes: Option<Box<StaticNodes>>,
    /// With several static nodes: what they tell one another.
    failure_channel: Option<FailureChannel>,
    /// With several static nodes: by which they notice that one is gone.
    node_watch: Option<NodeWatch>,
    dynamic: Option<DynamicRendezvous>,
    /// How many joins there were.
    joins: u64,
    /// What agents exchange their ranks through.
    store: Arc<dyn Store>,
    answers: UnboundedSender<Answer>,
    liveness: Liveness,
    /// The threads that the current round needs.
    watched: Vec<Watched>,
}

impl RendezvousHandle {
    pub(crate) fn new(config: &AgentConfig, answers: UnboundedSender<Answer>) -> Self {
        let dynamic = match &config.rendezvous {
            RendezvousPlan::Dynamic { parameters } => Some(DynamicRendezvous::new(
                config.backends.clone(),
                parameters.clone(),
                Member {
                    role: config.role.clone(),
                    local_world_size: config.local_world_size,
                    share_store: config.share_store,
                    master_port: match config.master_port {
                        MasterPort::Fixed(port) => Some(port),
                        // A kept socket is for one node only, and not dynamic.
                        MasterPort::Free | MasterPort::Kept(_) => None,
                    },
                },
                answers.clone(),
            )),
            _ => None,
        };
        let parameters = match config.rendezvous.clone() {
            RendezvousPlan::Local | RendezvousPlan::Dynamic { .. } => None,
            RendezvousPlan::Static {
                endpoint,
                node_rank,
                nodes,
                timeout,
            } => Some(StaticParameters {
                endpoint,
                node_rank,
                nodes,
                timeout,
                run_id: config.run_id.clone(),
            }),
        };
        Self {
            us: RoleInfo {
                role: config.role.clone(),
                rank: parameters
                    .as_ref()
                    .map_or(GroupRank(0), |parameters| parameters.node_rank),
                local_world_size: config.local_world_size,
            },
            identical_workers: config.identical_workers,
            local: LocalRendezvous::new(config),
            parameters,
            static_nodes: None,
            failure_channel: None,
            node_watch: None,
            dynamic,
            joins: 0,
            // Alone, the agent talks to itself.
            store: Arc::new(HashStore::new()),
            answers,
            liveness: config.liveness.clone(),
            watched: Vec::new(),
        }
    }

    /// Finds the other agents.
    pub(crate) fn join(&mut self) {
        self.joins += 1;
        // A join waits for others within limits of its own, and may end what an earlier one has begun.
        self.watched.clear();
        if let Some(dynamic) = &mut self.dynamic {
            // Nothing of the round before may be used from here on.
            self.store = Arc::new(HashStore::new());
            if let Err(source) = dynamic.join() {
                self.answer(Answer::Joined(Err(no_thread(source))));
            }
            return;
        }
        let lost = self.node_watch.as_ref().and_then(NodeWatch::failure);
        let round = match (&self.parameters, &self.static_nodes) {
            (None, _) => self.local.round(),
            (Some(_), Some(met)) => lost.map_or_else(|| Ok(met.round()), Err),
            (Some(parameters), None) => {
                let parameters = parameters.clone();
                self.apart("rendezvous", move || {
                    Answer::Joined(StaticNodes::others(parameters).map(|met| Joined {
                        round: met.round(),
                        state: JoinedState::Static(Box::new(met)),
                    }))
                });
                return;
            }
        };
        self.answer(Answer::Joined(round.map(|round| Joined {
            round,
            state: JoinedState::Nothing,
        })));
    }

    /// Keeps what a rendezvous state, and returns its round.
    pub(crate) fn joined(&mut self, joined: Joined) -> Round {
        match joined.state {
            JoinedState::Nothing => {}
            JoinedState::Static(met) => {
                self.store = met.store();
                if met.failure_address().nodes > 1 {
                    self.listen(&met);
                }
                self.static_nodes = Some(met);
            }
            JoinedState::Dynamic(round) => {
                self.store = round.store();
                self.us.rank = round.rank();
                if let Some(dynamic) = &mut self.dynamic {
                    dynamic.joined(round);
                }
            }
        }
        self.watched = self
            .threads()
            .into_iter()
            .map(|(name, pinger)| self.liveness.watch(name, pinger))
            .collect();
        joined.round
    }

    /// The threads that the current round needs.
    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        if let Some(dynamic) = &self.dynamic {
            return dynamic.threads();
        }
        let pinger = match &self.static_nodes {
            Some(met) => met.pinger(),
            None => self.local.pinger(),
        };
        Vec::from_iter(pinger.map(|pinger| (STORE_SERVER, pinger)))
    }

    /// This node's rank among the agents, as of the last rendezvous.
    pub(crate) fn group_rank(&self) -> GroupRank {
        self.us.rank
    }

    /// Whether an answer is to a question that was asked since the last join.
    pub(crate) fn is_current(&self, join: u64) -> bool {
        self.joins == join
    }

    /// Empties the workers' store.
    pub(crate) fn purge(&mut self) {
        match &self.static_nodes {
            Some(met) => met.purge(),
            None => self.local.purge(),
        }
    }

    /// Exchanges ranks.
    pub(crate) fn assign(&mut self, round: &Round) {
        let (agents, join) = (round.group_world_size, self.joins);
        let dynamic = self.dynamic.as_ref();
        let given = dynamic.and_then(DynamicRendezvous::assignment);
        let result = if let Some(assignment) = given {
            Ok(assignment)
        } else if self.identical_workers {
            Ok(rank_exchange::without_store(&self.us, agents))
        } else if agents == 1 && self.dynamic.is_none() {
            rank_exchange::by_store(&*self.store, &self.us, agents)
        } else {
            let (store, us) = (Arc::clone(&self.store), self.us.clone());
            self.apart("ranks", move || Answer::Assigned {
                join,
                result: rank_exchange::by_store(&*store, &us, agents),
            });
            return;
        };
        self.answer(Answer::Assigned { join, result });
    }

    /// Hands out the port that was kept free for the worker that hosts the store, to be dropped
    /// when that worker has been started.
    pub(crate) fn release_port(&mut self, place: &WorkerRanks) -> Option<Arc<TcpListener>> {
        match &mut self.dynamic {
            _ if place.rank.0 != 0 => None,
            Some(dynamic) => dynamic.release_port(),
            None => self.local.release_port().map(Arc::new),
        }
    }

    /// Announces to the other nodes that this one has failed permanently, if they can be reached.
    pub(crate) fn announce(&mut self, reason: String) {
        if let Some(dynamic) = &self.dynamic {
            dynamic.announce(reason);
        } else if let Some(channel) = &mut self.failure_channel {
            channel.announce(&reason);
        }
    }

    /// Waits for failures of the other static nodes, and for their end. The run can do without.
    fn listen(&mut self, nodes: &StaticNodes) {
        let unnoticed =
            |error: &io::Error| warn!("failures of other nodes will not be noticed: {error}");
        let answers = self.answers.clone();
        let channel = FailureChannel::listen(nodes.failure_address(), answers.clone());
        self.failure_channel = channel.inspect_err(unnoticed).ok();
        let member = Member {
            role: self.us.role.clone(),
            local_world_size: self.us.local_world_size,
            share_store: false,
            master_port: None,
        };
        let watch = nodes
            .liveness()
            .map(|options| NodeWatch::start(options, member, answers));
        self.node_watch = watch.and_then(|watch| watch.inspect_err(unnoticed).ok());
    }

    /// Waits until the workers of all agents have succeeded.
    pub(crate) fn wait_for_others(&mut self, agents: u32) {
        let store = Arc::clone(&self.store);
        self.apart("exit barrier", move || {
            let timeout = Some(barrier::EXIT_BARRIER_TIMEOUT);
            Answer::BarrierPassed(store.barrier(barrier::TERMINAL_STATE, agents, timeout))
        });
    }

    /// Leaves the others; the receiver hears when that is done. After success they may still have
    /// something to read from the store.
    pub(crate) fn leave(&mut self, reason_to_leave: LeaveReason) -> Option<oneshot::Receiver<()>> {
        self.store = Arc::new(HashStore::new());
        self.watched.clear();
        if let Some(dynamic) = &mut self.dynamic {
            return dynamic.leave(reason_to_leave);
        }
        let met = self.static_nodes.take()?;
        let mut channel = self.failure_channel.take();
        let watch = self.node_watch.take();
        let stays = match &reason_to_leave {
            LeaveReason::Succeeded if channel.is_some() => static_nodes::LINGER,
            LeaveReason::Failed { reason } if channel.is_some() => {
                if let (Some(reason), Some(channel)) = (reason, &mut channel) {
                    channel.announce(reason);
                }
                static_nodes::UNTIL_READ
            }
            _ => Duration::ZERO,
        };
        let (sender, left) = oneshot::channel();
        let leaving = thread::Builder::new()
            .name("leave".to_owned())
            .spawn(move || {
                if let Some(channel) = channel {
                    channel.end();
                }
                if let Some(watch) = watch {
                    watch.end(reason_to_leave);
                }
                met.leave(stays);
                let _ = sender.send(());
            });
        leaving.ok().map(|_| left)
    }

    /// Does something that may wait for others.
    fn apart(&self, name: &str, work: impl FnOnce() -> Answer + Send + 'static) {
        let answers = self.answers.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = answers.send(work());
        });
        if let Err(source) = thread {
            self.answer(Answer::Joined(Err(no_thread(source))));
        }
    }

    fn answer(&self, answer: Answer) {
        // Nobody listens any more only when the agent is ending.
        let _ = self.answers.send(answer);
    }
}

fn no_thread(source: io::Error) -> AgentError {
    AgentError::System {
        what: "start a thread for the rendezvous",
        source,
    }
}

/// A round of a rendezvous, as the worker group has to know it.
fn round(info: &RendezvousInfo, share_store: bool, losses_known_within: Duration) -> Round {
    Round {
        number: info.round,
        group_rank: info.rank,
        group_world_size: info.world_size,
        master: Master {
            addr: info.master_addr.clone(),
            port: info.master_port,
            hosted_by_agent: share_store,
        },
        losses_known_within,
    }
}
