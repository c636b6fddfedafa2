//! Native rendezvous through an rdzv store server, which runs it.
//!
//! An agent sends single operations over a separate connection, and receives events about its
//! rounds (see [`rdzv_rendezvous_proto::coordinator`]). The connection is a task of the runtime, so
//! heartbeats never wait for other work of the agent.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | [`Native`]: the backend |
//! | `connection.rs`, `onlooking.rs` | the task of the connection; its reports to onlookers |
//! | `link.rs` | the connection, and the ways to close it |

mod connection;
mod link;
mod onlooking;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous_proto::coordinator::wire::AgentRefusal;
use rdzv_rendezvous_proto::native_client::{FormedRound, NativeClient, NativeFailure};
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store::{Pinger, PrefixStore, StorePolicy, TcpStore, TcpStoreOptions};
use tokio::sync::mpsc::UnboundedSender;

use crate::dynamic::bootstrap::{MasterEndpoint, WorkersStore, announce};
pub use crate::dynamic::extension::{extension, observed, restartable};
pub use crate::dynamic::node::addresses;
use crate::dynamic::node::numeric;
pub use crate::dynamic::note::NoteFile;
use crate::dynamic::probe::{self, Found};
pub use crate::dynamic::voters::{Located, OwnVoter, Redirect, Search, StartVoter, VoterCandidate};
use crate::runtime::{Task, no_thread};
use crate::{
    ExitBarrier, Interrupter, JoiningAgent, Kept, Observer, Onlookers, Program, RendezvousBackend,
    RendezvousError, RendezvousInfo,
};
use connection::{Command, Connection, NotJoined, OfVoters};
use link::own_end;
pub use rdzv_rendezvous_proto::coordinator::Origin;

/// Time limit to connect to the store of a coordinator that has just answered.
const FOLLOW_WITHIN: Duration = Duration::from_secs(5);

/// Parameters of a [`Native`].
pub struct NativeOptions {
    /// Connection to the store server, for the keys of the agents.
    pub store: Arc<TcpStore>,
    /// Run to join.
    pub run_id: RunId,
    /// Numbers of nodes, and time limits.
    pub settings: Settings,
    /// This agent. Other nodes reach the workers' store at its address.
    pub node: NodeDesc,
    /// Policy for the workers' store and for the stores of other agents.
    pub policy: StorePolicy,
    /// Program of its workers.
    pub program: Option<Program>,
    /// Sockets and records for the agent that replaces this one.
    pub kept: Option<Kept>,
    /// `true` if the kernel kills the workers when this process ends.
    pub ends_workers: bool,
    /// Endpoints of the voters, if the coordinator is one of them.
    ///
    /// The coordinator may move to another voter later.
    pub voters: Option<Search>,
    /// Candidacy of this agent in a group of voters that it may join.
    pub candidate: Option<VoterCandidate>,
    /// Receivers of information, for example about a lost connection.
    pub onlookers: Onlookers,
}

impl fmt::Debug for NativeOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "NativeOptions({} at {:?})",
            self.run_id, self.store
        )
    }
}

/// Kind of server at an address.
#[derive(Debug)]
pub enum Met {
    /// A coordinator, to which this agent now belongs.
    Coordinator(Box<Native>),
    /// A voter that is not the coordinator.
    Voter,
    /// A store without a coordinator.
    Store,
}

impl Met {
    /// Returns the rendezvous, if there is a coordinator.
    pub fn coordinator(self) -> Option<Native> {
        match self {
            Self::Coordinator(native) => Some(*native),
            Self::Voter | Self::Store => None,
        }
    }
}

/// Rendezvous of an agent through a coordinator.
pub struct Native {
    run_id: RunId,
    settings: Settings,
    endpoint: String,
    commands: UnboundedSender<Command>,
    task: Option<Task>,
    interrupted: Arc<AtomicBool>,
    store: Arc<TcpStore>,
    policy: StorePolicy,
    round: Option<u64>,
    /// Round of the last join, if the round survives the coordinator.
    recoverable: Option<u64>,
}

impl fmt::Debug for Native {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Native(run {} at {})",
            self.run_id, self.endpoint
        )
    }
}

impl Native {
    /// Connects to the peer of the store; each step takes at most `within`.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the peer cannot be reached or refuses this agent, or no thread can be
    /// started.
    pub fn connect(options: NativeOptions, within: Duration) -> Result<Met, RendezvousError> {
        let NativeOptions {
            store,
            run_id,
            settings,
            node,
            policy,
            program,
            kept,
            ends_workers,
            voters: search,
            candidate,
            onlookers,
        } = options;
        let address = store.peer();
        let endpoint = endpoint(address);
        let channel = match probe::probe(address, within, &policy.credentials) {
            Ok(Found::Coordinator(channel)) => channel,
            Ok(Found::Store) => return Ok(Met::Store),
            Ok(Found::Voter(_)) => return Ok(Met::Voter),
            Err(what) => return Err(unreachable(endpoint, what.to_string(), None)),
        };
        let (instance, predecessors) = match &kept {
            Some(kept) => {
                kept.take_part();
                (kept.instance(), kept.predecessors().to_vec())
            }
            None => (fastrand::u64(1..), Vec::new()),
        };
        let workers = WorkersStore::new(node.addr.clone(), policy.clone());
        let now = crate::fence::now();
        let mut client = NativeClient::new(now, instance, run_id.as_str(), node, settings)
            .running(program)
            .replacing(predecessors)
            .at(numeric(address));
        if search.as_ref().is_some_and(|search| !search.is_open()) {
            client = client.among_voters();
        }
        let mut client = client.from(own_end(&channel, ends_workers).map(numeric));
        if candidate.as_ref().is_some_and(VoterCandidate::is_willing) {
            client = client.willing();
        }
        let of_voters = OfVoters { search, candidate };
        let connection = (channel, address);
        let (commands, task) = Connection::start(
            connection,
            ends_workers,
            of_voters,
            workers,
            client,
            onlookers,
        )
        .map_err(|error| no_thread(&error, "for the connection to it", endpoint.clone()))?;
        Ok(Met::Coordinator(Box::new(Self {
            run_id,
            settings,
            endpoint,
            commands,
            task: Some(task),
            interrupted: Arc::default(),
            store,
            policy,
            round: None,
            recoverable: None,
        })))
    }

    /// Connects to the store at the coordinator, which may have moved.
    ///
    /// The agents of a round share that store.
    fn follow(&mut self, coordinator: SocketAddr) {
        if coordinator == self.store.peer() {
            return;
        }
        let (host, port) = (coordinator.ip().to_string(), coordinator.port());
        let connected = TcpStore::connect(TcpStoreOptions {
            timeout: FOLLOW_WITHIN,
            ..self.policy.client(host, port)
        });
        match connected {
            Ok(store) => {
                self.endpoint = endpoint(coordinator);
                self.store = Arc::new(store);
            }
            // The coordinator is lost again. The round is lost with it, or soon recovered.
            // Without the store, this node misses notices of the scheduler to other nodes.
            Err(error) => tracing::warn!(%error, "cannot connect to the coordinator's store"),
        }
    }

    fn info(&self, joined: FormedRound, offered: Option<MasterEndpoint>) -> RendezvousInfo {
        let prefix = format!("torch.rendezvous.{}.{}", self.run_id, joined.round);
        let (server, reserved_port) = match offered {
            Some(master) => (master.server, master.reserved_port),
            None => (None, None),
        };
        RendezvousInfo {
            round: joined.round,
            store: Arc::new(PrefixStore::new(prefix, Arc::clone(&self.store) as _)),
            rank: GroupRank(joined.rank),
            world_size: joined.world_size,
            assignment: joined.assignment,
            replaced: joined.replaced,
            master_addr: joined.master_addr,
            master_port: joined.master_port,
            server,
            reserved_port,
        }
    }

    fn explain(&self, failure: NativeFailure) -> RendezvousError {
        let (run_id, endpoint) = (self.run_id.to_string(), self.endpoint.clone());
        match failure {
            NativeFailure::Refused(AgentRefusal::Closed) => {
                RendezvousError::Closed { run_id, endpoint }
            }
            NativeFailure::Refused(AgentRefusal::NotNeeded) => {
                RendezvousError::NotNeeded { run_id }
            }
            NativeFailure::Refused(AgentRefusal::JoinTimeout { elapsed, joined }) => {
                RendezvousError::JoinTimeout {
                    run_id,
                    endpoint,
                    joined,
                    min_nodes: self.settings.min_nodes,
                    elapsed,
                }
            }
            NativeFailure::Refused(AgentRefusal::Unusable(sentence)) => {
                RendezvousError::Argument(sentence)
            }
            NativeFailure::Interrupted => RendezvousError::Interrupted,
            NativeFailure::Unreachable { what, elapsed } => {
                unreachable(endpoint, what, Some(elapsed))
            }
            NativeFailure::SilentLeader { round, elapsed } => RendezvousError::SilentLeader {
                run_id,
                endpoint,
                round,
                leader: None,
                elapsed,
            },
        }
    }

    /// Sends a command to the task, and waits for its answer.
    fn ask<T>(
        &self,
        command: impl FnOnce(mpsc::SyncSender<T>) -> Command,
    ) -> Result<T, RendezvousError> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.send(command(sender));
        answer.recv().map_err(|_| {
            let what = "the connection task has stopped".to_owned();
            unreachable(self.endpoint.clone(), what, None)
        })
    }

    /// Sends a command; has no effect if the task has ended.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    fn end(&mut self) {
        if let Some(task) = self.task.take() {
            self.send(Command::End);
            if !task.join() {
                tracing::error!(endpoint = self.endpoint, "the connection task panicked");
            }
        }
    }
}

impl RendezvousBackend for Native {
    fn name(&self) -> &str {
        "c10d"
    }

    fn run_id(&self) -> &RunId {
        &self.run_id
    }

    fn join(&mut self, member: &JoiningAgent) -> Result<RendezvousInfo, RendezvousError> {
        if self.interrupted.load(Ordering::Acquire) {
            return Err(RendezvousError::Interrupted);
        }
        let (member, shared) = (member.clone(), member.share_store);
        let answer = self.ask(|answer| Command::Join { member, answer })?;
        match answer {
            Ok((joined, offered, coordinator)) => {
                self.follow(coordinator);
                self.round = Some(joined.round);
                self.recoverable = joined.is_recoverable.then_some(joined.round);
                if shared {
                    announce(&self.policy, &joined.master_addr, joined.master_port)?;
                }
                Ok(self.info(joined, offered))
            }
            Err(NotJoined::Failure(failure)) => Err(self.explain(failure)),
            Err(NotJoined::CannotLead(error)) => Err(error),
        }
    }

    fn interrupter(&self) -> Option<Interrupter> {
        let (commands, interrupted) = (self.commands.clone(), Arc::clone(&self.interrupted));
        Some(Arc::new(move || {
            interrupted.store(true, Ordering::Release);
            let _ = commands.send(Command::Interrupt);
        }))
    }

    fn set_observer(&mut self, observer: Observer) {
        self.send(Command::Observe(observer));
    }

    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        let commands = self.commands.clone();
        vec![(
            "rendezvous connection",
            Arc::new(move |alive| drop(commands.send(Command::Ping(alive)))),
        )]
    }

    fn exit_barrier(&self) -> Option<ExitBarrier> {
        let (round, commands) = (self.recoverable?, self.commands.clone());
        let endpoint = self.endpoint.clone();
        Some(Arc::new(move |timeout| {
            let (answer, passed) = mpsc::sync_channel(1);
            let _ = commands.send(Command::Succeeded { round, answer });
            let passed = match timeout {
                Some(timeout) => passed.recv_timeout(timeout),
                None => passed.recv().map_err(Into::into),
            };
            passed.unwrap_or_else(|error| {
                let endpoint = endpoint.clone();
                Err(match error {
                    mpsc::RecvTimeoutError::Timeout => RendezvousError::Unreachable {
                        what: format!("the workers of other nodes have not finished round {round}"),
                        endpoint,
                        elapsed: timeout,
                        remedy: "check the logs of the other nodes, or wait longer with \
                                 --exit-barrier-timeout SECONDS",
                    },
                    mpsc::RecvTimeoutError::Disconnected => {
                        unreachable(endpoint, format!("round {round} is over"), None)
                    }
                })
            })
        }))
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        self.ask(Command::Status).map(|(closed, _)| closed)
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        self.ask(Command::Close)?
            .map_err(|failure| self.explain(failure))
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        self.ask(Command::Status).map(|(_, waiting)| waiting)
    }

    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        self.send(Command::Failed(reason.to_owned()));
        Ok(())
    }

    fn report_success(&mut self) {
        if let Some(round) = self.round {
            let (answer, _no_barrier_waits) = mpsc::sync_channel(1);
            self.send(Command::Succeeded { round, answer });
        }
    }

    fn leave(&mut self) -> Result<(), RendezvousError> {
        self.ask(Command::Leave)
    }

    fn shutdown(&mut self) -> bool {
        let closed = self.set_closed();
        if let Err(error) = &closed {
            tracing::warn!(run_id = %self.run_id, %error, "cannot close the rendezvous");
        }
        self.end();
        closed.is_ok()
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.end();
    }
}

fn endpoint(address: SocketAddr) -> String {
    format!("the rdzv store at {address}")
}

fn unreachable(endpoint: String, what: String, elapsed: Option<Duration>) -> RendezvousError {
    RendezvousError::Unreachable {
        what,
        endpoint,
        elapsed,
        remedy: match elapsed {
            None => {
                "check that the agent or the `rdzv store` that hosts the endpoint is running and \
                 reachable from this host"
            }
            Some(_) => {
                "check that the agent or the `rdzv store` that hosts the endpoint is running and \
                 reachable from this host; to wait longer, set --rdzv-conf \
                 coordinator_timeout=SECONDS (rdzv store: --coordinator-timeout), or \
                 close_timeout=SECONDS for the end of the run"
            }
        },
    }
}
