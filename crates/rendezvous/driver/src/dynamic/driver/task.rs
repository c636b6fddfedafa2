//! Task that waits for commands, notices and the machine's deadline.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rdzv_core::machine::Machine;
use rdzv_core::reminder::{self, Reminder};
use rdzv_core::time::{Mono, Now, Wall, earliest};
use rdzv_lock::Mutex;
use rdzv_rendezvous_proto::last_call::LastCall;
use rdzv_rendezvous_proto::participant::{self, Input, Output};
use rdzv_rendezvous_proto::waiting::{Arrived, Waiting};
use rdzv_rendezvous_proto::{NodeDesc, Participant, RendezvousState, codec};
use rdzv_store::Store;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tracing::warn;

use super::DriverOptions;
use super::command::{Command, Event};
use super::interruption::Interruption;
use super::messages::{self, Messages};
use super::{peer_failures, successes};
use crate::dynamic::outage::OutageWatch;
use crate::dynamic::{Notice, SharedState, StateToken, waiting};
use crate::error::without_help;
use crate::runtime::{blocking, sleep};
use crate::{Change, Observer, RendezvousError};

/// Poll interval of a state whose notices may be missing, as in torchelastic.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct DriverTask {
    machine: Participant,
    me: NodeDesc,
    /// Shared state, which blocking threads use, one call at a time.
    shared: Arc<Mutex<Box<dyn SharedState>>>,
    messages: Messages,
    interruption: Arc<Interruption>,
    commands: UnboundedReceiver<Command>,
    observer: Option<Observer>,
    /// Origin of the monotonic time.
    origin: Instant,
    token: Option<StateToken>,
    /// State that the token belongs to.
    known: Option<RendezvousState>,
    /// Nodes that have ended, according to notices instead of missing heartbeats.
    gone: BTreeSet<NodeDesc>,
    /// `true` if the channel already contains a notice of a change.
    changed: Arc<AtomicBool>,
    joining: Option<Sender<Event>>,
    join_began: Mono,
    reminder: Reminder,
    /// Nodes in the latest report to the user.
    reported: Option<Arrived>,
    leaving: Vec<SyncSender<Result<(), RendezvousError>>>,
    closing: Vec<SyncSender<Result<(), RendezvousError>>>,
    interrupted: bool,
    /// `true` if the last call of the forming round was logged.
    last_call_announced: bool,
    /// Round of this node, and its store.
    round: Option<(u64, Arc<dyn Store>)>,
    /// `true` if a failure in this round was announced.
    failure_announced: bool,
    /// Reason why no further request is possible.
    lost: Option<String>,
    outage: OutageWatch,
}

impl DriverTask {
    /// Creates the task, and starts to watch the state.
    pub(super) fn new(
        mut shared: Box<dyn SharedState>,
        options: &DriverOptions,
        own_commands: UnboundedSender<Command>,
        commands: UnboundedReceiver<Command>,
        interruption: Arc<Interruption>,
    ) -> Result<Self, RendezvousError> {
        let me = options.me.clone();
        let changed: Arc<AtomicBool> = Arc::default();
        let noticed = Arc::clone(&changed);
        let notifies = shared.watch(Arc::new(move |notice| {
            let is_change = matches!(notice, Notice::Changed);
            if is_change && noticed.swap(true, Ordering::AcqRel) {
                return;
            }
            let _nobody_listens_any_more = own_commands.send(Command::Notice(notice));
        }))?;
        let run_id = options.run_id.to_string();
        let outage = OutageWatch::new(
            shared.endpoint(),
            shared.gives_up_after(),
            Box::new(move |line, left| match left {
                Some(left) => {
                    let left = left.as_secs();
                    warn!(target: reminder::TARGET, left, "[{run_id}] {line}");
                }
                None => warn!("[{run_id}] {line}"),
            }),
        );
        let machine = Participant::new(me.clone(), options.settings, fastrand::u64(..));
        Ok(Self {
            machine: if notifies {
                machine
            } else {
                machine.polling(POLL_INTERVAL)
            },
            me,
            messages: Messages {
                run_id: options.run_id.to_string(),
                endpoint: shared.endpoint(),
                settings: options.settings,
            },
            shared: Arc::new(Mutex::new(shared)),
            interruption,
            commands,
            observer: None,
            origin: Instant::now(),
            token: None,
            known: None,
            gone: BTreeSet::new(),
            changed,
            joining: None,
            join_began: Mono::default(),
            reminder: Reminder::default(),
            reported: None,
            leaving: Vec::new(),
            closing: Vec::new(),
            interrupted: false,
            last_call_announced: false,
            round: None,
            failure_announced: false,
            lost: None,
            outage,
        })
    }

    pub(super) async fn run(mut self) {
        loop {
            let timeout = self.timeout();
            tokio::select! {
                command = self.commands.recv() => match command {
                    None | Some(Command::End) => break,
                    Some(command) => self.execute(command).await,
                },
                () = sleep(timeout) => {
                    self.handle(Input::Tick).await;
                    self.remind();
                }
            }
        }
        // The end of a state may make a request, for instance to revoke a lease.
        blocking(move || drop((self.round, self.shared))).await;
    }

    /// Sends a request to the state on a blocking thread.
    async fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut dyn SharedState) -> Result<T, RendezvousError> + Send + 'static,
    ) -> Result<T, RendezvousError> {
        let shared = Arc::clone(&self.shared);
        let request = blocking(move || request(&mut **shared.lock()));
        self.outage.answer(self.round.is_some(), request).await
    }

    /// Returns the longest wait for a command; `None` waits without a limit.
    fn timeout(&self) -> Option<Duration> {
        if self.lost.is_some() {
            return None;
        }
        let reminder = self.joining.is_some();
        let reminder = reminder.then(|| self.join_began + self.reminder.next());
        let deadline = earliest([self.machine.deadline(), reminder])?;
        Some(deadline.since(self.now().mono))
    }

    /// Logs what the join waits for, if a reminder is due.
    fn remind(&mut self) {
        let elapsed = self.now().mono.since(self.join_began);
        if self.joining.is_none() || self.lost.is_some() || !self.reminder.is_due(elapsed) {
            return;
        }
        self.tell(elapsed, true);
    }

    /// Updates the displayed list of nodes after a possible change of the state.
    fn refresh(&mut self) {
        let elapsed = self.now().mono.since(self.join_began);
        if self.joining.is_some() && self.lost.is_none() && self.reminder != Reminder::default() {
            self.tell(elapsed, false);
        }
    }

    fn tell(&mut self, elapsed: Duration, is_reminder: bool) {
        let state = self.known.as_ref();
        let arrived = state.and_then(|state| Arrived::seen_by(&self.me, state));
        if !is_reminder && arrived == self.reported {
            return;
        }
        let waiting = Waiting::new(arrived, &self.messages.settings, elapsed);
        let is_reminder = is_reminder && !waiting.is_last_call();
        waiting::tell(&self.messages.run_id, &waiting, is_reminder);
        self.reported = waiting.arrived;
    }

    async fn execute(&mut self, command: Command) {
        match command {
            Command::Join(waiting) => self.join(waiting).await,
            Command::Interrupt => self.interrupt().await,
            Command::Leave(reply) => {
                self.leaving.push(reply);
                self.request(Input::Leave).await;
            }
            Command::Close(reply) => {
                self.closing.push(reply);
                self.request(Input::Close).await;
            }
            Command::ReadState(reply) => {
                let state = self.read_state().await;
                let _ = reply.send(state);
            }
            Command::RoundStore(round, reply) => {
                let store = self.ask(move |shared| shared.round_store(round)).await;
                let _ = reply.send(store);
            }
            Command::Observe(observer) => self.observer = Some(observer),
            Command::Notice(Notice::Changed) => {
                self.changed.store(false, Ordering::Release);
                self.handle(Input::Changed).await;
            }
            Command::Notice(Notice::Gone(nodes)) => {
                self.gone.extend(nodes.iter().cloned());
                self.handle(Input::Gone(nodes)).await;
            }
            Command::Notice(Notice::Lost(error)) => self.lose(error),
            Command::PeerFailed { node, reason } => self.peer_failed(node, reason),
            Command::Ping(alive) => {
                let _ = alive.send(());
            }
            Command::End => {}
        }
    }

    async fn join(&mut self, waiting: Sender<Event>) {
        self.round = None;
        if self.interrupted {
            let _ = waiting.send(Event::Failed(RendezvousError::Interrupted));
            return;
        }
        self.joining = Some(waiting);
        self.join_began = self.now().mono;
        self.reminder = Reminder::default();
        self.reported = None;
        self.last_call_announced = false;
        if self.lost.is_none() {
            let me = self.me.clone();
            if let Err(error) = self.ask(move |shared| shared.announce(Some(&me))).await {
                return self.lose(error);
            }
        }
        self.request(Input::Join).await;
    }

    async fn interrupt(&mut self) {
        self.interrupted = true;
        if self.joining.is_some() {
            self.request(Input::Leave).await;
        }
    }

    async fn request(&mut self, input: Input) {
        if self.lost.is_some() {
            self.fail_all(None);
        } else {
            self.handle(input).await;
        }
    }

    /// Reads the current state. The machine does not see it, so the token stays.
    async fn read_state(&self) -> Result<Option<RendezvousState>, RendezvousError> {
        match &self.lost {
            Some(lost) => Err(self.messages.lost_before(lost)),
            None => match self.ask(|shared| shared.get()).await? {
                Some((pickle, _)) => self.decode(&pickle).map(Some),
                None => Ok(None),
            },
        }
    }

    async fn handle(&mut self, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            if self.lost.is_some() {
                return;
            }
            self.machine.handle(self.now(), input);
            while let Some(output) = self.machine.poll_output() {
                match self.apply(output).await {
                    Ok(None) => {}
                    Ok(answer) => next = answer,
                    Err(error) => self.lose(error),
                }
            }
        }
    }

    async fn apply(&mut self, output: Output) -> Result<Option<Input>, RendezvousError> {
        match output {
            _ if self.lost.is_some() => {}
            Output::Read => {
                let now = self.ask(|shared| shared.get()).await?;
                self.interruption.has_reached();
                let state = self.adopt(now)?;
                self.refresh();
                return Ok(Some(Input::Read(state)));
            }
            Output::Write(state) => {
                let pickle = codec::encode(&state);
                let token = self.token.clone();
                let written = self
                    .ask(move |shared| shared.set(&pickle, token.as_ref()))
                    .await?;
                self.interruption.has_reached();
                let before = self.known.take();
                let now = self.adopt(written.now)?;
                self.refresh();
                if written.won && messages::is_worth_announcing(before.as_ref(), &state) {
                    self.ask(|shared| shared.notify()).await?;
                }
                return Ok(Some(Input::Written {
                    state: now,
                    won: written.won,
                }));
            }
            Output::Joined(formed) => {
                let round = formed.round;
                let store = self.ask(move |shared| shared.round_store(round)).await?;
                self.round = Some((formed.round, Arc::clone(&store)));
                self.failure_announced = false;
                self.gone.clear();
                if let Some(joining) = self.joining.take() {
                    let _ = joining.send(Event::Formed(formed, store));
                }
            }
            Output::Changed(change) => self.changed(change).await,
            Output::Left => {
                self.left_round().await?;
                if let Some(joining) = self.joining.take() {
                    let _ = joining.send(Event::Failed(RendezvousError::Interrupted));
                }
                for reply in self.leaving.drain(..) {
                    let _ = reply.send(Ok(()));
                }
            }
            Output::Closed => {
                self.left_round().await?;
                for reply in self.closing.drain(..) {
                    let _ = reply.send(Ok(()));
                }
            }
            Output::Failed(failure) => {
                self.left_round().await?;
                let interrupted = self.interrupted;
                let error = self.messages.failure(failure);
                if let Some(joining) = self.joining.take() {
                    let error = if interrupted {
                        RendezvousError::Interrupted
                    } else {
                        error
                    };
                    let _ = joining.send(Event::Failed(error));
                } else {
                    self.fail_all(Some(error));
                }
            }
        }
        Ok(None)
    }

    async fn left_round(&mut self) -> Result<(), RendezvousError> {
        self.round = None;
        self.ask(|shared| shared.announce(None)).await
    }

    async fn changed(&mut self, mut change: participant::ParticipantChange) {
        let Some((round, store)) = &self.round else {
            return;
        };
        let (round, store) = (*round, Arc::clone(store));
        if let participant::ParticipantChange::NodesLost(nodes) = &mut change {
            let (lost, store) = (std::mem::take(nodes), Arc::clone(&store));
            *nodes = blocking(move || successes::without_reported(&*store, lost)).await;
            if nodes.is_empty() {
                return;
            }
        }
        if !matches!(change, participant::ParticipantChange::NodesWaiting(_)) {
            self.interruption.end_round();
        }
        // A failing node reports its failure before it closes the run, but that notice may arrive
        // later.
        if matches!(change, participant::ParticipantChange::Closed) {
            let me = self.me.to_string();
            let reported = blocking(move || peer_failures::reported(&*store, &me)).await;
            if let Some((node, reason)) = reported {
                self.peer_failed(node, reason);
            }
        }
        let known = self.known.as_ref();
        let change = self.messages.change(round, change, &self.gone, known);
        self.notify(change);
    }

    /// Announces a failure once, although its notice may arrive in two ways.
    fn peer_failed(&mut self, node: String, reason: String) {
        if !std::mem::replace(&mut self.failure_announced, true) {
            self.notify(Change::PeerFailed { node, reason });
        }
    }

    fn notify(&self, change: Change) {
        tracing::debug!(?change, "notified by the rendezvous");
        if let Some(observer) = &self.observer {
            observer(change);
        }
    }

    /// Adopts the store's value together with its token.
    fn adopt(
        &mut self,
        now: Option<(Bytes, StateToken)>,
    ) -> Result<Option<RendezvousState>, RendezvousError> {
        (self.known, self.token) = match now {
            None => (None, None),
            Some((pickle, token)) => (Some(self.decode(&pickle)?), Some(token)),
        };
        if let Some(state) = self.known.as_ref().filter(|_| self.joining.is_some())
            && !self.last_call_announced
            && let Some(call) =
                LastCall::seen_by(&self.me, state, &self.messages.settings, self.now().wall)
        {
            self.last_call_announced = true;
            warn!("[{}] {call}", self.messages.run_id);
        }
        Ok(self.known.clone())
    }

    fn decode(&self, pickle: &[u8]) -> Result<RendezvousState, RendezvousError> {
        codec::decode(pickle).map_err(|error| self.messages.corrupt(&error.to_string()))
    }

    /// Records that the backend is unusable from now on.
    fn lose(&mut self, error: RendezvousError) {
        if self.lost.is_some() {
            return;
        }
        self.lost = Some(without_help(&error));
        self.interruption.end_round();
        let waited_for =
            self.joining.is_some() || !self.leaving.is_empty() || !self.closing.is_empty();
        if waited_for {
            self.fail_all(Some(error));
        } else if self.round.take().is_some() && !self.is_known_closed() {
            self.notify(Change::Lost(error));
        }
    }

    /// Answers all waiting requests: the first one with `first`.
    ///
    /// The others get the reason why requests are no longer possible.
    fn fail_all(&mut self, first: Option<RendezvousError>) {
        let mut first = first;
        let lost = self.lost.clone().unwrap_or_default();
        let messages = &self.messages;
        let is_closed = self.is_known_closed();
        let mut error = || first.take().unwrap_or_else(|| messages.lost_before(&lost));
        if let Some(joining) = self.joining.take() {
            let _ = joining.send(Event::Failed(error()));
        }
        for reply in self.leaving.drain(..).chain(self.closing.drain(..)) {
            // At the end of a job, the store may end before every node has closed the run again.
            let _ = reply.send(if is_closed { Ok(()) } else { Err(error()) });
        }
    }

    fn is_known_closed(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.closed)
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_micros());
        Now {
            mono: Mono::from_origin(self.origin.elapsed()),
            wall: Wall::from_unix_micros(i64::try_from(wall).unwrap_or(i64::MAX)),
        }
    }
}
