//! The native path: at the endpoint is an rdzv store server, which runs the rendezvous itself.
//!
//! An agent sends single operations over a connection of its own, and receives events about its
//! rounds (see [`rdzv_rendezvous_proto::coordinator`]). The connection is a task of the runtime, so
//! that heartbeats never wait for anything else that the agent does.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Native`]: the backend |
//! | `connection.rs`, `onlooking.rs` | the task of the connection; what it tells those who look on |
//! | `link.rs` | the connection, which ends in order only by the agent's word, or with its process |

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
use rdzv_rendezvous_proto::coordinator::wire::Refusal;
use rdzv_rendezvous_proto::native_client::{Failure, Joined, NativeClient};
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store::{Pinger, PrefixStore, StorePolicy, TcpStore, TcpStoreOptions};
use tokio::sync::mpsc::UnboundedSender;

use crate::dynamic::bootstrap::{Master, WorkersStore, announce};
pub use crate::dynamic::extension::{extension, observed, restartable};
pub use crate::dynamic::node::addresses;
use crate::dynamic::node::numeric;
pub use crate::dynamic::note::NoteFile;
use crate::dynamic::probe::{self, Found};
pub use crate::dynamic::voters::{Candidate, Located, OwnVoter, Redirect, Search, StartVoter};
use crate::runtime::{Task, no_thread};
use crate::{
    ExitBarrier, Interrupter, Kept, Member, Observer, Onlookers, Program, RendezvousBackend,
    RendezvousError, RendezvousInfo,
};
use connection::{Command, Connection, NotJoined, OfVoters};
use link::own_end;
pub use rdzv_rendezvous_proto::coordinator::Origin;

/// Time to reach the store at a coordinator that has just answered.
const FOLLOW_WITHIN: Duration = Duration::from_secs(5);

/// What a [`Native`] is made of.
pub struct NativeOptions {
    /// A connection to the store server, for the agents' keys.
    pub store: Arc<TcpStore>,
    /// The run.
    pub run_id: RunId,
    /// How many nodes, and how long to wait for what; the same for all agents of a run.
    pub settings: Settings,
    /// This agent; its address is where the others reach the workers' store.
    pub node: NodeDesc,
    /// The policy of the workers' store, and of the stores of others.
    pub policy: StorePolicy,
    /// The program of its workers.
    pub program: Option<Program>,
    /// The sockets and notes that outlive this agent, where another one is started in place of it then.
    pub kept: Option<Kept>,
    /// Whether the kernel kills the workers when this process has ended.
    pub ends_workers: bool,
    /// The places of the voters, if the coordinator is at one of them. It may be at another place later on.
    pub voters: Option<Search>,
    /// This agent's part in a group of voters that it may join.
    pub candidate: Option<Candidate>,
    /// Those who look on: at a connection to the coordinator that is lost, say.
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

/// The server at an address.
#[derive(Debug)]
pub enum Met {
    /// A coordinator, at which this agent takes part.
    Coordinator(Box<Native>),
    /// A voter that is not the coordinator.
    Voter,
    /// A store without a coordinator.
    Store,
}

impl Met {
    /// The part in the rendezvous, if there is a coordinator.
    pub fn coordinator(self) -> Option<Native> {
        match self {
            Self::Coordinator(native) => Some(*native),
            Self::Voter | Self::Store => None,
        }
    }
}

/// An agent's rendezvous through a coordinator.
pub struct Native {
    run_id: RunId,
    settings: Settings,
    place: String,
    commands: UnboundedSender<Command>,
    task: Option<Task>,
    interrupted: Arc<AtomicBool>,
    store: Arc<TcpStore>,
    policy: StorePolicy,
    /// The round of the last join, if it holds on over the death of the coordinator.
    recoverable: Option<u64>,
}

impl fmt::Debug for Native {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Native(run {} at {})", self.run_id, self.place)
    }
}

impl Native {
    /// Connects, within `within`.
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
        let place = place(address);
        let channel = match probe::probe(address, within, &policy.credentials) {
            Ok(Found::Coordinator(channel)) => channel,
            Ok(Found::Store) => return Ok(Met::Store),
            Ok(Found::Voter(_)) => return Ok(Met::Voter),
            Err(what) => return Err(unreachable(place, what.to_string(), None)),
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
        if candidate.as_ref().is_some_and(Candidate::is_willing) {
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
        .map_err(|error| no_thread(&error, "for the connection to it", place.clone()))?;
        Ok(Met::Coordinator(Box::new(Self {
            run_id,
            settings,
            place,
            commands,
            task: Some(task),
            interrupted: Arc::default(),
            store,
            policy,
            recoverable: None,
        })))
    }

    /// The agents of a round share the store at its coordinator, which may be another one than before.
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
                self.place = place(coordinator);
                self.store = Arc::new(store);
            }
            // It is gone again, and the round with it or soon recovered; without the store, this
            // node hears of no notices of the scheduler to others.
            Err(error) => tracing::warn!(%error, "the store at the coordinator cannot be reached"),
        }
    }

    fn info(&self, joined: Joined, offered: Option<Master>) -> RendezvousInfo {
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
            master_addr: joined.master_addr,
            master_port: joined.master_port,
            server,
            reserved_port,
        }
    }

    fn explain(&self, failure: Failure) -> RendezvousError {
        let (run_id, place) = (self.run_id.to_string(), self.place.clone());
        match failure {
            Failure::Refused(Refusal::Closed) => RendezvousError::Closed { run_id, place },
            Failure::Refused(Refusal::NotNeeded) => RendezvousError::NotNeeded { run_id },
            Failure::Refused(Refusal::JoinTimeout { elapsed, joined }) => {
                RendezvousError::JoinTimeout {
                    run_id,
                    place,
                    joined,
                    min_nodes: self.settings.min_nodes,
                    elapsed,
                }
            }
            Failure::Refused(Refusal::Unusable(sentence)) => RendezvousError::Argument(sentence),
            Failure::Interrupted => RendezvousError::Interrupted,
            Failure::Unreachable { what, elapsed } => unreachable(place, what, Some(elapsed)),
        }
    }

    /// Has the task do something, and waits for its answer.
    fn ask<T>(
        &self,
        command: impl FnOnce(mpsc::SyncSender<T>) -> Command,
    ) -> Result<T, RendezvousError> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.send(command(sender));
        answer.recv().map_err(|_| {
            let what = "the task that keeps the connection has ended".to_owned();
            unreachable(self.place.clone(), what, None)
        })
    }

    /// A task that has ended, which only a panic does before, answers nothing.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    fn end(&mut self) {
        if let Some(task) = self.task.take() {
            self.send(Command::End);
            if !task.join() {
                tracing::error!(place = self.place, "the task of the connection panicked");
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

    fn join(&mut self, member: &Member) -> Result<RendezvousInfo, RendezvousError> {
        if self.interrupted.load(Ordering::Acquire) {
            return Err(RendezvousError::Interrupted);
        }
        let (member, shared) = (member.clone(), member.share_store);
        let answer = self.ask(|answer| Command::Join { member, answer })?;
        match answer {
            Ok((joined, offered, coordinator)) => {
                self.follow(coordinator);
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
        let place = self.place.clone();
        Some(Arc::new(move |timeout| {
            let (answer, passed) = mpsc::sync_channel(1);
            let _ = commands.send(Command::Succeeded { round, answer });
            passed.recv_timeout(timeout).map_err(|error| {
                let (what, elapsed) = match error {
                    mpsc::RecvTimeoutError::Timeout => (
                        format!("the workers of other nodes have not ended round {round}"),
                        Some(timeout),
                    ),
                    mpsc::RecvTimeoutError::Disconnected => {
                        (format!("round {round} is over"), None)
                    }
                };
                unreachable(place.clone(), what, elapsed)
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

    fn leave(&mut self) -> Result<(), RendezvousError> {
        self.ask(Command::Leave)
    }

    fn shutdown(&mut self) -> bool {
        let closed = self.set_closed();
        if let Err(error) = &closed {
            tracing::warn!(run_id = %self.run_id, %error, "the rendezvous could not be closed");
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

fn place(address: SocketAddr) -> String {
    format!("the rdzv store at {address}")
}

fn unreachable(place: String, what: String, elapsed: Option<Duration>) -> RendezvousError {
    RendezvousError::Unreachable {
        what,
        place,
        elapsed,
        remedy: "check that the agent or the `rdzv store` that hosts the endpoint runs and can be \
                 reached from here",
    }
}
