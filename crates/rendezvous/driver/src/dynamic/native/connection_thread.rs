//! The thread of an agent's connection: the driver of [`NativeClient`].
//!
//! ```text
//!   Native ── mailbox ───────► thread ◄── socket ──► coordinator
//!          ◄── answers, observer ──┘
//! ```

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdzv_core::escape::escape;
use rdzv_core::machine::Machine as _;
use rdzv_core::reminder;
use rdzv_event::{Mailbox, Sender, mailbox, poll};
use rdzv_rendezvous_proto::native_client::{self, Failure, Input, Joined, NativeClient, Output};
use rdzv_trust::Channel;
use rustix::event::{PollFd, PollFlags};
use socket2::SockRef;

use super::candidate::Candidate;
use super::link::Link;
use super::onlooking::Onlooking;
use super::probe::{Found, probe};
use super::search::Search;
use super::{place, unreachable};
use crate::dynamic::bootstrap::{Master, WorkersStore};
use crate::dynamic::waiting;
use crate::fence;
use crate::{Change, Member, Observer, Onlookers, RendezvousError};

/// Time for one attempt to connect again: people are told in between that there is no coordinator.
const ONE_ATTEMPT: Duration = Duration::from_secs(1);

/// Time for the answer to the last `Leave`, without which the thread ends then.
const LEAVE_WITHIN: Duration = Duration::from_millis(300);

/// Bytes read at a time.
const READ_AT_ONCE: usize = 16 << 10;

/// What the backend asks the thread for.
pub(super) enum Command {
    Join {
        member: Member,
        answer: mpsc::SyncSender<JoinAnswer>,
    },
    Interrupt,
    Leave(mpsc::SyncSender<()>),
    Close(mpsc::SyncSender<Result<(), Failure>>),
    Failed(String),
    Status(mpsc::SyncSender<(bool, u32)>),
    /// All workers of this node have succeeded in the round; answered when those of all nodes have.
    Succeeded {
        round: u64,
        answer: mpsc::SyncSender<()>,
    },
    Observe(Observer),
    Ping(mpsc::Sender<()>),
    End,
}

/// The end of a join: with what this node hosts for the workers, if it does, and with the address of the coordinator.
pub(super) type JoinAnswer = Result<(Joined, Option<Master>, SocketAddr), NotJoined>;

/// Why a join failed.
pub(super) enum NotJoined {
    Failure(Failure),
    /// This node has rank 0 and cannot host the workers' store.
    CannotLead(RendezvousError),
}

/// The voters, as far as this agent has to do with them.
pub(super) struct OfVoters {
    /// The other places at which the coordinator may be, if there are any.
    pub(super) search: Option<Search>,
    /// This agent's part in a group that it may join.
    pub(super) candidate: Option<Candidate>,
}

/// Everything the thread owns.
pub(super) struct ConnectionThread {
    client: NativeClient,
    address: SocketAddr,
    voters: OfVoters,
    link: Option<Link>,
    /// Whether the end of a connection may be that of the process.
    ends_workers: bool,
    buffer: Box<[u8]>,
    commands: Mailbox<Command>,
    observer: Option<Observer>,
    workers: WorkersStore,
    share: bool,
    offered: Option<Master>,
    cannot_lead: Option<RendezvousError>,
    join: Option<mpsc::SyncSender<JoinAnswer>>,
    close: Option<mpsc::SyncSender<Result<(), Failure>>>,
    status: Vec<mpsc::SyncSender<(bool, u32)>>,
    /// The caller that waits for the success of all nodes.
    barrier: Option<mpsc::SyncSender<()>>,
    /// Since when there is no connection, if one was there before.
    lost_since: Option<Instant>,
    onlooking: Onlooking,
    /// It ends: until when it waits for the answer to what it has said last.
    end: Option<Instant>,
}

impl ConnectionThread {
    pub(super) fn start(
        link: Link,
        address: SocketAddr,
        voters: OfVoters,
        workers: WorkersStore,
        client: NativeClient,
        onlookers: Onlookers,
    ) -> io::Result<(Sender<Command>, JoinHandle<()>)> {
        let (sender, commands) = mailbox()?;
        link.channel().stream().set_nonblocking(true)?;
        let search = voters.search.as_ref().filter(|search| !search.is_open());
        let found = search.and_then(Search::coordinator);
        let coordinator = found.unwrap_or_else(|| address.to_string());
        let mut onlooking = Onlooking::new(onlookers, search, coordinator);
        onlooking.attached(&client);
        let thread = Self {
            client,
            address,
            voters,
            ends_workers: link.from().is_some(),
            link: Some(link),
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
        let thread = std::thread::Builder::new()
            .name("rdzv-rendezvous".to_owned())
            .spawn(move || thread.run())?;
        Ok((sender, thread))
    }

    fn run(mut self) {
        while !self.has_ended() {
            let (readable, has_commands) = self.wait();
            if has_commands {
                self.receive();
            }
            if readable {
                self.read();
            }
            let deadline = self.client.deadline();
            if deadline.is_some_and(|deadline| deadline <= fence::now().mono) {
                self.handle(Input::Tick);
            }
        }
        let within = self.one_attempt();
        if let Some(link) = self.link.as_mut().filter(|_| self.client.is_attached()) {
            link.detach(within);
        }
    }

    /// A coordinator that ends hands over what it has heard; what is on its way to it then is lost. So the other nodes
    /// learn of a node that has left if it waits until that is known.
    fn has_ended(&self) -> bool {
        self.end
            .is_some_and(|by| !self.client.is_leaving() || by <= Instant::now())
    }

    /// Waits for the first of its sources: whether the socket, and the mailbox, have something.
    fn wait(&self) -> (bool, bool) {
        let deadline = self.client.deadline();
        let left = deadline.map(|deadline| deadline.since(fence::now().mono));
        let end = self
            .end
            .map(|by| by.saturating_duration_since(Instant::now()));
        let left = left.into_iter().chain(end).min();
        let mut sources = vec![PollFd::new(&self.commands, PollFlags::IN)];
        if let Some(link) = &self.link {
            let descriptor = link.channel().stream().as_fd();
            sources.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        }
        if poll(&mut sources, left).is_err() {
            // Without a way to wait, everything is tried.
            return (true, true);
        }
        let ready = |index: usize| {
            let source = sources.get(index);
            source.is_some_and(|source| !source.revents().is_empty())
        };
        (ready(1), ready(0))
    }

    fn receive(&mut self) {
        self.commands.drain();
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.execute(command),
                Err(mpsc::TryRecvError::Empty) => return,
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.end = Some(Instant::now());
                    return;
                }
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Join { member, answer } => {
                self.share = member.share_store;
                self.workers.use_port(member.master_port);
                self.join = Some(answer);
                self.barrier = None;
                self.handle(Input::Join {
                    role: &member.role,
                    local_world_size: member.local_world_size,
                });
            }
            Command::Interrupt => self.handle(Input::Interrupt),
            Command::Leave(answer) => {
                self.handle(Input::Leave);
                let _ = answer.send(());
            }
            Command::Close(answer) => {
                self.close = Some(answer);
                self.handle(Input::Close);
            }
            Command::Failed(reason) => self.handle(Input::Failed(&reason)),
            Command::Status(answer) => {
                self.status.push(answer);
                self.handle(Input::Ask);
            }
            Command::Succeeded { round, answer } => {
                self.barrier = Some(answer);
                self.handle(Input::Succeeded(round));
            }
            Command::Observe(observer) => self.observer = Some(observer),
            Command::Ping(alive) => {
                let _ = alive.send(());
            }
            Command::End => {
                self.handle(Input::Leave);
                self.end = Some(Instant::now() + LEAVE_WITHIN);
            }
        }
    }

    fn read(&mut self) {
        while let Some(link) = &mut self.link {
            let channel = link.channel_mut();
            match channel.read(&mut self.buffer) {
                Ok(0) => return self.broken("it closed the connection".to_owned()),
                Ok(count) => {
                    // What is decrypted already is not reported again.
                    let is_all = !channel.is_encrypted();
                    let bytes = self.buffer[..count].to_vec();
                    self.onlooking.heard();
                    self.handle(Input::Bytes(&bytes));
                    if is_all {
                        return;
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return,
                    _ => return self.broken(error.to_string()),
                },
            }
        }
    }

    fn broken(&mut self, why: String) {
        self.link = None;
        self.note_lost(&why);
        self.handle(Input::Disconnected(why));
    }

    fn note_lost(&mut self, why: &str) {
        if self.lost_since.is_none() {
            self.lost_since = Some(Instant::now());
            let place = place(self.address);
            let lost = format!("lost the connection to {place} ({why})");
            self.onlooking.record(&self.client, lost, None);
        }
    }

    /// Has the kernel end the connection if the machine of the coordinator acknowledges nothing for so long. A process that
    /// is stopped does: its kernel answers for it.
    fn watch(&self, silence: Duration) {
        if let Some(link) = &self.link
            && let Err(error) =
                SockRef::from(link.channel().stream()).set_tcp_user_timeout(Some(silence))
        {
            tracing::debug!("the connection to the coordinator cannot be watched: {error}");
        }
    }

    /// Passes an input to the machine, and applies its outputs and what follows from them.
    fn handle(&mut self, input: Input<'_>) {
        self.client.handle(fence::now(), input);
        let mut outputs = VecDeque::new();
        loop {
            outputs.extend(std::iter::from_fn(|| self.client.poll_output()));
            let Some(output) = outputs.pop_front() else {
                return self.onlooking.attached(&self.client);
            };
            match self.apply(output) {
                Happened::Nothing => {}
                Happened::Connected => {
                    let from = self.link.as_ref().and_then(Link::from);
                    let connected = Input::Connected(from.as_deref());
                    self.client.handle(fence::now(), connected);
                }
                Happened::Broke(why) => {
                    self.link = None;
                    self.client.handle(fence::now(), Input::Disconnected(why));
                }
                Happened::Offered { round, master } => {
                    let (addr, port) = (&master.addr, master.port);
                    let publish = Input::Publish { round, addr, port };
                    self.client.handle(fence::now(), publish);
                    self.offered = Some(master);
                }
                Happened::IsNoCandidate => {
                    self.client.handle(fence::now(), Input::Willing(false));
                }
                Happened::CannotLead(error) => {
                    self.cannot_lead = Some(error);
                    self.client.handle(fence::now(), Input::Interrupt);
                }
            }
        }
    }

    fn apply(&mut self, output: Output) -> Happened {
        match output {
            Output::Dial => {
                return match self.dial() {
                    Ok(channel) => {
                        self.link = Some(Link::new(channel, self.ends_workers));
                        if let Some(since) = self.lost_since.take() {
                            let (took, place) = (since.elapsed(), place(self.address));
                            self.onlooking.reattached(&self.client, &place, took);
                        }
                        Happened::Connected
                    }
                    Err(why) => Happened::Broke(why),
                };
            }
            Output::HangUp => self.link = None,
            Output::Watch(silence) => self.watch(silence),
            Output::Search => {
                let credentials = self.workers.credentials();
                let search = self.voters.search.as_mut();
                if search.is_some_and(|search| search.has_moved(credentials)) {
                    let why = "another voter coordinates now";
                    self.note_lost(why);
                    return Happened::Broke(why.to_owned());
                }
            }
            Output::Voters {
                addresses,
                voters,
                invites,
            } => {
                self.onlooking.voters(match voters {
                    0 | 1 => &[],
                    _ => &addresses,
                });
                let OfVoters { search, candidate } = &mut self.voters;
                let candidate = candidate.as_mut();
                if candidate.is_some_and(|it| it.members_changed(&addresses, invites, search)) {
                    return Happened::IsNoCandidate;
                }
            }
            Output::Send(bytes) => {
                if let Err(error) = self.send(&bytes) {
                    return Happened::Broke(error.to_string());
                }
            }
            Output::Lead { round } => {
                return match self.workers.offer(self.share) {
                    Ok(master) => Happened::Offered { round, master },
                    Err(error) => Happened::CannotLead(error),
                };
            }
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
                    "[{}] waiting for the node with rank 0 to say where the workers of round {round} meet; {} s \
                     left",
                    escape(self.client.run()),
                    left.as_secs()
                );
            }
            Output::Missing(missing) => {
                let run = self.client.run();
                self.onlooking.miss(run, place(self.address), missing);
            }
            Output::Undecided(address) => {
                tracing::warn!(
                    "[{}] {} does not know whether the coordinator before it has ended, which was reached at {}, not an \
                     address of its own; the workers are not touched; if that one has ended, start this one again, \
                     with --rdzv-conf recover=true (rdzv store: --recover)",
                    escape(self.client.run()),
                    place(self.address),
                    escape(&address),
                );
            }
            Output::AllSucceeded(_) => {
                if let Some(barrier) = self.barrier.take() {
                    let _ = barrier.send(());
                }
            }
            Output::Changed(change) => {
                if matches!(change, native_client::Change::Lost { .. }) {
                    // Nobody will say any more that the others have succeeded.
                    self.barrier = None;
                }
                self.observe(change);
            }
            Output::Lease { round, until } => {
                if let Some(observer) = &self.observer {
                    observer(Change::Lease { round, until });
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
        Happened::Nothing
    }

    /// Connects to the coordinator, which may be at another place than before.
    fn dial(&mut self) -> Result<Channel, String> {
        let credentials = self.workers.credentials();
        let channel = match &mut self.voters.search {
            Some(search) => {
                let commands = &self.commands;
                let has_commands = || {
                    let mut source = [PollFd::new(commands, PollFlags::IN)];
                    poll(&mut source, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
                };
                let located = search.find(credentials, Duration::MAX, has_commands)?;
                self.address = located.address;
                if let Some(coordinator) = search.coordinator() {
                    self.onlooking.reached(coordinator);
                }
                located.channel
            }
            None => match probe(self.address, self.one_attempt(), credentials) {
                Ok(Found::Coordinator(channel)) => channel,
                Ok(Found::Voter(_)) => {
                    let Some(candidate) = &self.voters.candidate else {
                        return Err("there is a voter that is not the coordinator".to_owned());
                    };
                    // It knows where that is.
                    let endpoint = candidate.endpoint.clone();
                    self.voters.search = Some(Search::of_open_group(endpoint, &[]));
                    return self.dial();
                }
                Ok(Found::Store) => {
                    let what = "there is another store now, which hosts no rendezvous";
                    return Err(what.to_owned());
                }
                Err(why) => return Err(why.to_string()),
            },
        };
        let set = channel.stream().set_nonblocking(true);
        set.map(|()| channel).map_err(|error| error.to_string())
    }

    /// The time for an attempt: not beyond the end of the thread.
    fn one_attempt(&self) -> Duration {
        let left = self
            .end
            .map(|by| by.saturating_duration_since(Instant::now()));
        // A limit of zero would be none.
        left.map_or(ONE_ATTEMPT, |left| {
            left.clamp(Duration::from_millis(1), ONE_ATTEMPT)
        })
    }

    fn answer_close(&mut self, answer: Result<(), Failure>) {
        if let Some(close) = self.close.take() {
            let _ = close.send(answer);
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.link {
            Some(link) => link.send(bytes, ONE_ATTEMPT),
            None => Ok(()),
        }
    }

    fn observe(&self, change: native_client::Change) {
        let Some(observer) = &self.observer else {
            return;
        };
        observer(match change {
            native_client::Change::Membership { round, reason } => {
                Change::Membership { round, reason }
            }
            native_client::Change::PeerFailed { node, reason } => {
                Change::PeerFailed { node, reason }
            }
            native_client::Change::Closed => Change::Closed,
            native_client::Change::Lost { what, elapsed } => {
                Change::Lost(unreachable(place(self.address), what, Some(elapsed)))
            }
        });
    }
}

/// What an output has led to.
enum Happened {
    Nothing,
    Connected,
    Broke(String),
    Offered { round: u64, master: Master },
    IsNoCandidate,
    CannotLead(RendezvousError),
}
