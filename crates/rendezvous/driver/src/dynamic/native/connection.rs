//! Task of an agent's connection: the driver of [`NativeClient`].
//!
//! ```text
//!   Native ── commands ──────► task ◄── socket ──► coordinator
//!          ◄── answers, observer ──┘ ◄── blocking calls ──► voters
//! ```

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdzv_core::escape::escape;
use rdzv_core::machine::Machine as _;
use rdzv_core::reminder;
use rdzv_rendezvous_proto::native_client::{
    self, FormedRound, Input, NativeClient, NativeFailure, Output,
};
use rdzv_trust::{Channel, Credentials};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::link::Link;
use super::onlooking::Onlooking;
use super::{endpoint, unreachable};
use crate::dynamic::bootstrap::{MasterEndpoint, WorkersStore};
use crate::dynamic::probe::{Found, probe};
use crate::dynamic::voters::{Search, VoterCandidate};
use crate::dynamic::waiting;
use crate::fence;
use crate::runtime::{Calls, Task, blocking, sleep, spawn};
use crate::{Change, JoiningAgent, Observer, Onlookers, RendezvousError};

/// Time limit to reconnect without a search, and to send a piece of data.
///
/// Users get reports between attempts.
const ONE_ATTEMPT: Duration = Duration::from_secs(1);

/// Time limit for the answer to the last `Leave`, after which the task ends.
const LEAVE_WITHIN: Duration = Duration::from_millis(300);

/// Size of the read buffer in bytes.
const READ_AT_ONCE: usize = 16 << 10;

/// Command to the task.
pub(super) enum Command {
    Join {
        member: JoiningAgent,
        answer: mpsc::SyncSender<JoinAnswer>,
    },
    Interrupt,
    Leave(mpsc::SyncSender<()>),
    Close(mpsc::SyncSender<Result<(), NativeFailure>>),
    Failed(String),
    Status(mpsc::SyncSender<(bool, u32)>),
    /// All workers of this node have succeeded in the round.
    ///
    /// The answer comes when the workers of all nodes have succeeded.
    Succeeded {
        round: u64,
        answer: mpsc::SyncSender<Result<(), RendezvousError>>,
    },
    Observe(Observer),
    Ping(mpsc::Sender<()>),
    End,
}

/// Result of a join.
///
/// It contains the round, the endpoint of the workers' store if this node offers it, and the
/// address of the coordinator.
pub(super) type JoinAnswer = Result<(FormedRound, Option<MasterEndpoint>, SocketAddr), NotJoined>;

/// Reason why a join failed.
pub(super) enum NotJoined {
    Failure(NativeFailure),
    /// This node has rank 0 and cannot host the workers' store.
    CannotLead(RendezvousError),
}

/// Voter-related state of this agent: search and candidacy. Methods can block.
pub(super) struct OfVoters {
    /// Search for the coordinator at its other endpoints, if there are any.
    pub(super) search: Option<Search>,
    /// Candidacy of this agent for a voter group that it may join.
    pub(super) candidate: Option<VoterCandidate>,
}

/// Result of a call that concerns the voters.
enum Done {
    Dialed(Result<Dialed, String>),
    /// `true` if another voter coordinates now.
    Searched(bool),
    /// `true` if this agent is no longer a candidate.
    MembersChanged(bool),
}

/// Connection to the coordinator, which may have moved.
struct Dialed {
    channel: Channel,
    address: SocketAddr,
    /// Endpoint of the coordinator, if a search found it.
    coordinator: Option<String>,
}

pub(super) struct Connection {
    client: NativeClient,
    address: SocketAddr,
    calls: Calls<OfVoters, Done>,
    /// `true` while a search is queued or running.
    is_searching: bool,
    link: Option<Link>,
    /// `true` if the end of a connection may mean the end of the process.
    ends_workers: bool,
    buffer: Box<[u8]>,
    commands: UnboundedReceiver<Command>,
    observer: Option<Observer>,
    workers: WorkersStore,
    share: bool,
    offered: Option<MasterEndpoint>,
    cannot_lead: Option<RendezvousError>,
    join: Option<mpsc::SyncSender<JoinAnswer>>,
    close: Option<mpsc::SyncSender<Result<(), NativeFailure>>>,
    status: Vec<mpsc::SyncSender<(bool, u32)>>,
    /// Sender to the caller that waits for the success of all nodes.
    barrier: Option<mpsc::SyncSender<Result<(), RendezvousError>>>,
    /// Time of the loss of the connection; `None` with a connection.
    ///
    /// Also `None` if the machine hung up, or if data could not be sent.
    lost_since: Option<Instant>,
    onlooking: Onlooking,
    /// Deadline of the last answer, if the task is ending.
    end: Option<Instant>,
}

impl Connection {
    /// Starts the task on a connection to the coordinator at this address.
    pub(super) fn start(
        (channel, address): (Channel, SocketAddr),
        ends_workers: bool,
        voters: OfVoters,
        workers: WorkersStore,
        client: NativeClient,
        onlookers: Onlookers,
    ) -> io::Result<(UnboundedSender<Command>, Task)> {
        let (sender, commands) = unbounded_channel();
        let search = voters.search.as_ref().filter(|search| !search.is_open());
        let found = search.and_then(Search::coordinator);
        let coordinator = found.unwrap_or_else(|| address.to_string());
        let mut onlooking = Onlooking::new(onlookers, search, coordinator);
        onlooking.attached(&client);
        let connection = Self {
            client,
            address,
            calls: Calls::new(voters),
            is_searching: false,
            link: None,
            ends_workers,
            buffer: vec![0; READ_AT_ONCE].into_boxed_slice(),
            commands,
            observer: None,
            workers,
            share: true,
            offered: None,
            cannot_lead: None,
            join: None,
            close: None,
            status: Vec::new(),
            barrier: None,
            lost_since: None,
            onlooking,
            end: None,
        };
        let task = spawn(connection.run(channel))?;
        Ok((sender, task))
    }

    async fn run(mut self, channel: Channel) {
        match Link::new(channel, self.ends_workers) {
            Ok(link) => self.link = Some(link),
            Err(error) => self.broken(error.to_string()).await,
        }
        while !self.has_ended() {
            let left = self.left();
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.execute(command).await,
                    None => self.end = Some(Instant::now()),
                },
                read = read(&mut self.link, &mut self.buffer) => self.received(read).await,
                done = self.calls.next() => self.done(done).await,
                report = self.onlooking.next_report() => self.handle(Input::Report(report)).await,
                () = sleep(left) => {}
            }
            let deadline = self.client.deadline();
            if deadline.is_some_and(|deadline| deadline <= fence::now().mono) {
                self.handle(Input::Tick).await;
            }
        }
        let within = self.one_attempt();
        if let Some(link) = self.link.as_mut().filter(|_| self.client.is_attached()) {
            link.detach(within).await;
        }
        // The end of a server waits for its thread.
        blocking(move || drop((self.calls, self.workers))).await;
    }

    /// `true` if the task may end.
    ///
    /// A coordinator that hands over passes on everything that it has received, but loses messages
    /// in transit. The task therefore waits for the answer to `Leave`, so that the other nodes are
    /// notified.
    fn has_ended(&self) -> bool {
        self.end
            .is_some_and(|by| !self.client.is_leaving() || by <= Instant::now())
    }

    fn left(&self) -> Option<Duration> {
        let deadline = self.client.deadline();
        let left = deadline.map(|deadline| deadline.since(fence::now().mono));
        left.into_iter().chain(self.left_of_end()).min()
    }

    fn left_of_end(&self) -> Option<Duration> {
        let end = self.end;
        end.map(|by| by.saturating_duration_since(Instant::now()))
    }

    async fn execute(&mut self, command: Command) {
        match command {
            Command::Join { member, answer } => {
                self.share = member.share_store;
                self.workers.use_port(member.master_port);
                self.join = Some(answer);
                self.barrier = None;
                let join = Input::Join {
                    role: &member.role,
                    local_world_size: member.local_world_size,
                    lost: &member.lost,
                };
                self.handle(join).await;
            }
            Command::Interrupt => self.handle(Input::Interrupt).await,
            Command::Leave(answer) => {
                self.handle(Input::Leave).await;
                let _ = answer.send(());
            }
            Command::Close(answer) => {
                self.close = Some(answer);
                self.handle(Input::Close).await;
            }
            Command::Failed(reason) => self.handle(Input::Failed(&reason)).await,
            Command::Status(answer) => {
                self.status.push(answer);
                self.handle(Input::Ask).await;
            }
            Command::Succeeded { round, answer } => {
                self.barrier = Some(answer);
                self.handle(Input::Succeeded(round)).await;
            }
            Command::Observe(observer) => self.observer = Some(observer),
            Command::Ping(alive) => {
                let _ = alive.send(());
            }
            Command::End => {
                self.handle(Input::Leave).await;
                self.end = Some(Instant::now() + LEAVE_WITHIN);
            }
        }
    }

    async fn received(&mut self, read: io::Result<usize>) {
        match read {
            Ok(0) => {
                let why = "the peer closed the connection";
                self.broken(why.to_owned()).await;
            }
            Ok(count) => {
                self.onlooking.heard();
                let bytes = Input::Bytes(&self.buffer[..count]);
                self.client.handle(fence::now(), bytes);
                self.apply_all().await;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.broken(error.to_string()).await,
        }
    }

    async fn broken(&mut self, why: String) {
        self.link = None;
        self.note_lost(&why);
        self.handle(Input::Disconnected(why)).await;
    }

    fn note_lost(&mut self, why: &str) {
        if self.lost_since.is_none() {
            self.lost_since = Some(Instant::now());
            let lost = format!("lost the connection to {} ({why})", endpoint(self.address));
            self.onlooking.record(&self.client, lost, None);
        }
    }

    async fn done(&mut self, done: Done) {
        match done {
            Done::Dialed(dialed) => match dialed.and_then(|dialed| self.adopt(dialed)) {
                Ok(from) => self.handle(Input::Connected(from.as_deref())).await,
                Err(why) => self.handle(Input::Disconnected(why)).await,
            },
            Done::Searched(has_moved) => {
                self.is_searching = false;
                // The next connection comes after the search.
                if has_moved && self.link.is_some() {
                    self.broken("another voter is now the coordinator".to_owned())
                        .await;
                }
            }
            Done::MembersChanged(true) => self.handle(Input::Willing(false)).await,
            Done::MembersChanged(false) => {}
        }
    }

    /// Continues over a new connection; returns the local address.
    fn adopt(&mut self, dialed: Dialed) -> Result<Option<String>, String> {
        self.address = dialed.address;
        // This coordinator numbers its watches separately.
        self.onlooking.reports(0, Vec::new());
        if let Some(coordinator) = dialed.coordinator {
            self.onlooking.reached(coordinator);
        }
        let link = Link::new(dialed.channel, self.ends_workers);
        let link = link.map_err(|error| error.to_string())?;
        if let Some(since) = self.lost_since.take() {
            let at = endpoint(self.address);
            (self.onlooking).reattached(&self.client, &at, since.elapsed());
        }
        Ok(self.link.insert(link).from())
    }

    /// Passes an input to the machine, and applies all resulting outputs.
    async fn handle(&mut self, input: Input<'_>) {
        self.client.handle(fence::now(), input);
        self.apply_all().await;
    }

    async fn apply_all(&mut self) {
        let mut outputs = VecDeque::new();
        loop {
            outputs.extend(std::iter::from_fn(|| self.client.poll_output()));
            let Some(output) = outputs.pop_front() else {
                return self.onlooking.attached(&self.client);
            };
            self.apply(output).await;
        }
    }

    /// Applies an output, which may cause one input to the machine.
    async fn apply(&mut self, output: Output) {
        match output {
            Output::Dial => {
                let (address, within) = (self.address, self.one_attempt());
                let credentials = self.workers.credentials().clone();
                self.calls
                    .push(move |voters| Done::Dialed(voters.dial(address, within, &credentials)));
            }
            Output::HangUp => self.link = None,
            Output::Watch(silence) => {
                if let Some(link) = &self.link {
                    link.watch(silence);
                }
            }
            Output::Search if self.is_searching => {}
            Output::Search => {
                self.is_searching = true;
                let credentials = self.workers.credentials().clone();
                self.calls.push(move |voters| {
                    let search = voters.search.as_mut();
                    Done::Searched(search.is_some_and(|search| search.has_moved(&credentials)))
                });
            }
            Output::Voters(list) => {
                self.onlooking.voters(match list.voters {
                    0 | 1 => &[],
                    _ => &list.addresses,
                });
                self.calls.push(move |OfVoters { search, candidate }| {
                    let candidate = candidate.as_mut();
                    Done::MembersChanged(candidate.is_some_and(|it| {
                        it.members_changed(&list.addresses, list.invites, search)
                    }))
                });
            }
            Output::Send(bytes) => {
                if let Some(link) = &mut self.link
                    && let Err(error) = link.send(&bytes, ONE_ATTEMPT).await
                {
                    self.link = None;
                    let broke = Input::Disconnected(error.to_string());
                    self.client.handle(fence::now(), broke);
                }
            }
            Output::Lead { round } => match self.workers.offer(self.share) {
                Ok(master) => {
                    let (addr, port) = (&master.addr, master.port);
                    let publish = Input::Publish { round, addr, port };
                    self.client.handle(fence::now(), publish);
                    self.offered = Some(master);
                }
                Err(error) => {
                    self.cannot_lead = Some(error);
                    self.client.handle(fence::now(), Input::Interrupt);
                }
            },
            Output::Joined(joined) => {
                self.onlooking.over();
                let offered = self.offered.take().filter(|_| joined.rank == 0);
                if joined.rank != 0 {
                    self.workers.step_down();
                }
                if let Some(join) = self.join.take() {
                    let _ = join.send(Ok((joined, offered, self.address)));
                }
            }
            Output::NotJoined(failure) => {
                self.onlooking.over();
                let why = match self.cannot_lead.take() {
                    Some(error) => NotJoined::CannotLead(error),
                    None => NotJoined::Failure(failure),
                };
                if let Some(join) = self.join.take() {
                    let _ = join.send(Err(why));
                }
            }
            Output::Waiting {
                waiting,
                is_reminder,
            } => {
                waiting::tell(self.client.run(), &waiting, is_reminder);
                self.onlooking.wait_for_nodes(self.client.run(), waiting);
            }
            Output::AwaitingMaster { round, left } => {
                tracing::warn!(
                    target: reminder::TARGET,
                    left = left.as_secs(),
                    "[{}] waiting for the node with rank 0 to publish the endpoint of the workers \
                     of round {round}; {} s left",
                    escape(self.client.run()),
                    left.as_secs()
                );
            }
            Output::Missing(missing) => {
                let run = self.client.run();
                self.onlooking.miss(run, endpoint(self.address), missing);
            }
            Output::Undecided(address) => {
                tracing::warn!(
                    "[{}] {} cannot tell whether the previous coordinator (at {}, not a local \
                     address) is still running; the workers continue; if that coordinator has \
                     exited, restart the process of this store with --rdzv-conf recover=true (rdzv \
                     store: --recover)",
                    escape(self.client.run()),
                    endpoint(self.address),
                    escape(&address),
                );
            }
            Output::AllSucceeded(_) => {
                if let Some(barrier) = self.barrier.take() {
                    let _ = barrier.send(Ok(()));
                }
            }
            Output::Changed(change) => {
                if let native_client::RoundChange::Lost { what, elapsed } = &change
                    && let Some(barrier) = self.barrier.take()
                {
                    // No process will report the success of the others any more.
                    let at = endpoint(self.address);
                    let _ = barrier.send(Err(unreachable(at, what.clone(), Some(*elapsed))));
                }
                self.observe(change);
            }
            Output::Reports { watch, messages } => self.onlooking.reports(watch, messages),
            Output::Lease { round, ends } => {
                if let Some(observer) = &self.observer {
                    observer(Change::Lease { round, ends });
                }
            }
            Output::LossesKnownWithin(within) => {
                if let Some(observer) = &self.observer {
                    observer(Change::LossesKnownWithin(within));
                }
            }
            Output::Closed => self.answer_close(Ok(())),
            Output::NotClosed(failure) => self.answer_close(Err(failure)),
            Output::Status { closed, waiting } => {
                for status in self.status.drain(..) {
                    let _ = status.send((closed, waiting));
                }
            }
        }
    }

    /// Returns the time limit for an attempt, up to the end of the task.
    fn one_attempt(&self) -> Duration {
        // The system treats a limit of zero as no limit.
        self.left_of_end().map_or(ONE_ATTEMPT, |left| {
            left.clamp(Duration::from_millis(1), ONE_ATTEMPT)
        })
    }

    fn answer_close(&mut self, answer: Result<(), NativeFailure>) {
        if let Some(close) = self.close.take() {
            let _ = close.send(answer);
        }
    }

    fn observe(&self, change: native_client::RoundChange) {
        let Some(observer) = &self.observer else {
            return;
        };
        observer(match change {
            native_client::RoundChange::Membership { round, reason } => {
                Change::Membership { round, reason }
            }
            native_client::RoundChange::PeerFailed { node, reason } => {
                Change::PeerFailed { node, reason }
            }
            native_client::RoundChange::Closed => Change::Closed,
            native_client::RoundChange::Lost { what, elapsed } => {
                Change::Lost(unreachable(endpoint(self.address), what, Some(elapsed)))
            }
        });
    }
}

async fn read(link: &mut Option<Link>, into: &mut [u8]) -> io::Result<usize> {
    match link {
        Some(link) => link.read(into).await,
        None => pending().await,
    }
}

impl OfVoters {
    /// Connects to the coordinator, whose last address is `address`.
    ///
    /// Without other endpoints, each step of the attempt takes at most `within`.
    fn dial(
        &mut self,
        address: SocketAddr,
        within: Duration,
        credentials: &Credentials,
    ) -> Result<Dialed, String> {
        if self.search.is_none() {
            match probe(address, within, credentials).map_err(|why| why.to_string())? {
                Found::Coordinator(channel) => {
                    return Ok(Dialed {
                        channel,
                        address,
                        coordinator: None,
                    });
                }
                Found::Voter(_) => {
                    let candidate = self.candidate.as_ref();
                    let candidate =
                        candidate.ok_or("a voter that is not the coordinator answered")?;
                    // The voter knows the endpoint of the coordinator.
                    let endpoint = candidate.endpoint.clone();
                    self.search = Some(Search::of_open_group(endpoint, &[]));
                }
                Found::Store => {
                    let what = "another store, which does not host a rendezvous, answered";
                    return Err(what.to_owned());
                }
            }
        }
        let search = self.search.as_mut().ok_or("no voter is known")?;
        let located = search.find(credentials, Duration::MAX)?;
        Ok(Dialed {
            channel: located.channel,
            address: located.address,
            coordinator: search.coordinator(),
        })
    }
}
