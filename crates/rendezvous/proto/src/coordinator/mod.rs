//! The coordinator of rendezvous, the one writer of the state of many runs.
//!
//! It runs beside a store server.
//!
//! Agents that share a state through compare-and-set race for every change of it, and all but one
//! lose each race. A coordinator instead takes single operations over a connection of each agent
//! (the [`wire`]), applies them in the order in which they come, and sends events about what
//! follows.
//!
//! ```text
//!   operation ─┐                                        ┌─► Send: events for agents
//!   closed ────┼─► Coordinator ─► Sessions ─► Run (by id) ─┼─► Store: torchrun's form of the state, …
//!   time ──────┤                                        └─► Read: a key; Found follows at once
//!   reads and writes of torchrun's agents
//! ```
//!
//! * Joins commute: ranks follow the order of the nodes, not of their arrival.
//! * An operation costs O(log N), a round O(N): it is announced once per round that it does not
//!   hold any more.
//! * The same state stands under torchrun's key for agents that know nothing of coordinators. Its
//!   form is made when one of them reads it, and taken over when one of them has written; its
//!   compare-and-set fails if the state has changed since it was read.
//! * A run without a native agent is forgotten: everything about it is then under torchrun's key,
//!   which is removed after an hour.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | which run, which connection, when |
//! | `hosted.rs` | a run with its sessions |
//! | `sessions.rs` | connections, and when each was last heard of; volatile |
//! | `end.rs` | the end of a connection, and what it proves |
//! | `runs/` | the state of runs; deterministic |
//! | `backing.rs` | agents that ask whether this coordinator has a majority |
//! | `left_runs.rs` | runs without agents, whose keys are removed in the end |
//! | `gate.rs` | outputs that wait until the record is kept |
//! | `note.rs` | what the next coordinator knows if this one is killed |
//! | `deadlines.rs` | deadlines by key, and the next of them |
//! | `keys.rs` | names of keys |
//! | [`wire`] | operations and events as bytes |

mod backing;
mod deadlines;
mod end;
pub mod gate;
mod hosted;
mod keys;
mod left_runs;
pub mod note;
mod runs;
mod sessions;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::backing::Backing;
use self::deadlines::Deadlines;
use self::hosted::{Before, Hosted};
use self::keys::Key;
use self::left_runs::LeftRuns;
use self::runs::{Effect, Run};
use self::wire::{Authority, Event, Join, Operation, Reattach, Refusal, Standing};
use crate::group::Wait;
use crate::last_call::LastCall;
use crate::recovering::Recovering;
use crate::{NodeDesc, Rule, silence};
use rdzv_core::ident::ConnId;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now};

pub use end::{LOST_AFTER_END, WORKERS_END_WITHIN};
pub use keys::PREFIX;
pub use left_runs::{KEPT_FOR, MOST as MOST_LEFT_RUNS};
pub use note::{Note, RunNote};
pub use runs::RECOVERY_WINDOW;
pub use sessions::REATTACH_WITHIN;

/// What happened to a coordinator.
#[derive(Debug)]
pub enum Input<'a> {
    /// An agent asks for something.
    Request {
        /// Its connection.
        from: ConnId,
        /// The operation's opcode.
        opcode: u8,
        /// The operation's fields.
        payload: &'a [u8],
    },
    /// A connection is about to be gone because the other machine does not answer any more.
    Silent(ConnId),
    /// The other end of a connection, at this numeric address and port if it is known, has ended its stream in order; the
    /// connection is about to be gone.
    EndOfStream {
        /// The connection.
        id: ConnId,
        /// The address.
        peer: Option<String>,
    },
    /// A connection is gone.
    Closed(ConnId),
    /// The answer to [`Output::Read`].
    Found {
        /// The key.
        key: &'a [u8],
        /// What it holds.
        value: Option<&'a [u8]>,
    },
    /// An agent of torchrun is about to read a key, or to change it.
    Touching {
        /// The key.
        key: &'a [u8],
        /// Whether it may change it.
        writes: bool,
    },
    /// An agent of torchrun may have changed a key.
    Stored {
        /// The key.
        key: &'a [u8],
        /// What it holds now.
        value: Option<&'a [u8]>,
    },
    /// The answer to [`Output::Confirm`].
    Confirmed {
        /// Which one.
        token: u64,
        /// Whether this coordinator is the leader, after the question.
        leads: bool,
    },
    /// The number of voters behind the coordinator.
    ///
    /// With three or more, rounds have a [fence](crate::fence).
    Voters(u32),
    /// The process of the coordinator is about to end, by its own decision.
    Ending,
    /// The deadline has come.
    Tick,
}

/// What a coordinator wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send an event to an agent.
    Send(ConnId, Event),
    /// Read a key immediately, before anything else.
    ///
    /// Answered with [`Input::Found`].
    Read(Vec<u8>),
    /// Store a value.
    Store {
        /// Where.
        key: Vec<u8>,
        /// What.
        value: Vec<u8>,
    },
    /// Remove a key.
    Remove(Vec<u8>),
    /// Log that a round which has enough nodes waits for more.
    LastCall {
        /// The run.
        run: String,
        /// The last call.
        call: LastCall,
    },
    /// Log how far a state recovery has come.
    Recovering {
        /// The run.
        run: String,
        /// The state of its recovery.
        recovering: Recovering,
    },
    /// Keep this record for the next coordinator.
    ///
    /// The driver keeps it before it applies any later output. Only a restartable coordinator sends
    /// it.
    Note {
        /// The run.
        run: String,
        /// The facts to know about it; `None`: nothing any more.
        note: Option<RunNote>,
    },
    /// Keep this authority for the next coordinator.
    ///
    /// It is the cluster, and the coordinator in that cluster, that this coordinator now is. The
    /// driver keeps it before it applies any later output.
    Adopt(Authority),
    /// Ask the other voters whether this is the coordinator; answered with [`Input::Confirmed`]. Only of one that has voters
    /// behind it.
    Confirm(u64),
    /// End a connection that sent something invalid or has been replaced.
    Close(ConnId, String),
}

/// The server side of native rendezvous, for any number of runs.
#[derive(Debug, Default)]
pub struct Coordinator {
    runs: BTreeMap<String, Hosted>,
    /// The run of each connection that has joined one.
    joined: BTreeMap<ConnId, String>,
    /// Operations about runs whose key has not been read yet.
    pending: Vec<(ConnId, String, Operation)>,
    /// When each run wants to be called.
    alarms: Deadlines<String>,
    /// Which coordinator this is, if another one follows when it dies.
    authority: Option<Authority>,
    origin: Origin,
    /// When it began, if another one follows; what was before, it knows from the note alone.
    began: Option<Mono>,
    /// Whether any run stood in that.
    has_note: bool,
    /// It has taken over from a coordinator that has left no note.
    has_taken_over: bool,
    /// The note of the one before, of runs that nobody has asked about.
    noted: BTreeMap<String, RunNote>,
    left: LeftRuns,
    backing: Backing,
    /// Voters behind it; 0 without a group.
    voters: u32,
    outbox: Outbox<Output>,
}

/// Where a coordinator is, and what people have said about those before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The instance of the agent in whose process it is, if it is in one.
    pub agent: Option<u64>,
    /// The numeric addresses and ports at which it listens, all of them this machine's own. A coordinator that agents have
    /// reached at one of them has certainly ended, because a listening socket has one owner.
    pub addresses: BTreeSet<String>,
    /// People have said that no coordinator before it lives, nor any agent that is missing.
    pub recover: bool,
    /// The number of times that everything was forgotten which coordinators before it had decided. Rounds of now have other
    /// numbers than those of before.
    pub forgotten: u32,
    /// If voters are behind it: when one of those that elected it had last heard from an earlier leader.
    pub electors_heard: Option<Mono>,
    /// Maximum silence of a machine, if known before the first agent joins.
    pub node_timeout: Option<Duration>,
    /// All rules, except in a simulation.
    pub rules: Rules<Rule>,
}

impl Origin {
    /// The agent with which the coordinator ends for good. One that voters have elected is followed by another one.
    fn host(&self) -> Option<u64> {
        self.agent.filter(|_| self.electors_heard.is_none())
    }
}

impl Machine for Coordinator {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input<'_>) {
        self.outbox.assert_drained();
        match input {
            Input::Request {
                from,
                opcode,
                payload,
            } => match Operation::read(opcode, payload) {
                Ok(operation) => self.operate(now, from, operation),
                Err(error) => self.outbox.push(Output::Close(
                    from,
                    format!("it sent a bad operation of native rendezvous: {error}"),
                )),
            },
            Input::Silent(id) => {
                if let Some(hosted) = self.hosted(id) {
                    hosted.sessions.is_silent(id);
                }
            }
            Input::EndOfStream { id, peer } => {
                if let Some(hosted) = self.hosted(id) {
                    hosted.sessions.stream_ends(id, peer.as_deref());
                }
            }
            Input::Closed(id) => self.closed(now, id),
            Input::Found { key, value } => self.found(now, key, value),
            Input::Touching { key, writes } => {
                if let Some(Key::State(run)) = self.key(key) {
                    self.apply(now, &run, |run, out| run.touching(now, writes, out));
                }
            }
            Input::Stored { key, value } => self.stored(now, key, value),
            Input::Confirmed { token, leads } => self.confirmed(token, leads),
            Input::Voters(voters) => self.count_voters(now, voters),
            Input::Ending => self.end(),
            Input::Tick => self.tick(now),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        let deadlines = [self.alarms.next(), self.left.deadline()];
        deadlines.into_iter().flatten().min()
    }
}

impl Coordinator {
    /// A coordinator that another one follows if it dies. `note` is what the one before has left, with this
    /// one's authority.
    pub fn restartable(now: Now, note: Note, origin: Origin) -> Self {
        let mut left = LeftRuns::default();
        for (run, note) in &note.runs {
            left.add_noted(now, run, note.is_held());
        }
        Self {
            authority: Some(note.authority),
            backing: Backing::of_epoch(note.authority.epoch),
            origin,
            began: Some(now.mono),
            has_note: !note.runs.is_empty(),
            has_taken_over: note.is_partial,
            noted: note.runs,
            left,
            ..Self::default()
        }
    }

    /// Whether an agent takes part in a run over this connection.
    pub fn has_joined(&self, connection: ConnId) -> bool {
        self.joined.contains_key(&connection)
    }

    /// The time after which the connection of an agent that has joined is to be ended if its kernel acknowledges nothing of
    /// what it was sent; `None` if a broken connection would be the loss of the agent.
    pub fn silence(&self, connection: ConnId) -> Option<Duration> {
        let hosted = self.runs.get(self.joined.get(&connection)?)?;
        let node_timeout = hosted.run.settings().node_timeout;
        self.authority
            .map(|_| silence::unacknowledged(node_timeout))
    }

    /// Returns this coordinator's authority, if another one follows when it dies.
    pub fn authority(&self) -> Option<Authority> {
        self.authority
    }

    /// For what it waits; of several runs, the first that does.
    pub fn waits(&self, now: Now) -> Option<Wait> {
        self.runs.iter().find_map(|(id, hosted)| {
            let recovering = hosted.run.recovering(now).filter(|it| !it.is_over())?;
            Some(Wait::of_recovery(id, &recovering))
        })
    }

    /// The number of voters behind it; 0 without a group.
    pub fn voters(&self) -> u32 {
        self.voters
    }

    /// Whether agents of torchrun take part in any run.
    pub fn has_torchrun(&self) -> bool {
        self.runs.values().any(|hosted| hosted.run.has_torchrun())
    }

    /// Whether any run has a native agent; if not, nothing that happens to keys concerns the coordinator.
    pub fn is_active(&self) -> bool {
        !self.runs.is_empty()
    }

    fn operate(&mut self, now: Now, from: ConnId, operation: Operation) {
        match operation {
            Operation::Join(join) => self.join(now, from, join),
            Operation::Close { ref run } | Operation::Status { ref run } => {
                let run = run.clone();
                self.about(now, from, run, operation);
            }
            Operation::Reattach(ref reattach) => {
                if self.is_acceptable(from, &reattach.join) {
                    let run = reattach.join.run.clone();
                    self.about(now, from, run, operation);
                }
            }
            Operation::Succeeded { round } => {
                self.apply_from(now, from, |run, node, out| {
                    run.succeeded(now, node, round, out);
                });
            }
            Operation::Leave => {
                self.apply_from(now, from, |run, node, out| run.leave(now, node, out));
                self.outbox.push(Output::Send(from, Event::Left));
            }
            Operation::Heartbeat => {
                let arrived = self.heard(now, from).and_then(|hosted| {
                    let node = hosted.sessions.node(from)?;
                    hosted.run.arrived(&node)
                });
                self.outbox.push(Output::Send(from, Event::Alive(arrived)));
            }
            Operation::Detach => {
                if let Some(hosted) = self.hosted(from) {
                    hosted.sessions.says_end(from);
                }
            }
            Operation::Lease { number, standing } => self.lease(now, from, number, standing),
            // Voters look after that.
            Operation::Candidate { .. } => {}
            Operation::Failed { reason } => {
                self.apply_from(now, from, |run, node, out| run.failed(node, &reason, out));
            }
            Operation::Master { round, addr, port } => {
                self.apply_from(now, from, |run, node, out| {
                    run.publish_master(node, round, addr, port, out);
                });
            }
        }
    }

    /// An agent has sent a word that is for its session alone.
    fn heard(&mut self, now: Now, from: ConnId) -> Option<&mut Hosted> {
        let run = self.joined.get(&from)?;
        let hosted = self.runs.get_mut(run)?;
        let limits = hosted.limits();
        hosted.sessions.heard(now, from, &limits);
        // Nobody is woken to find that it was heard of.
        if let Some(alarm) = hosted.deadline().filter(|_| self.alarms.has(run)) {
            self.alarms.set(run, alarm);
        }
        Some(hosted)
    }

    fn count_voters(&mut self, now: Now, voters: u32) {
        self.voters = voters;
        let runs: Vec<String> = self.runs.keys().cloned().collect();
        for run in runs {
            self.apply(now, &run, |run, out| run.count_voters(voters, out));
        }
    }

    /// An agent reports its lease, and asks for a new one.
    ///
    /// A coordinator without voters does not answer.
    fn lease(&mut self, now: Now, from: ConnId, number: u64, standing: Standing) {
        let is_known = self.heard(now, from).is_some();
        if is_known && standing != Standing::Asks {
            self.apply_from(now, from, |run, node, out| {
                run.reports_lease(node, standing, out);
            });
        }
        if is_known && self.voters > 0 && standing != Standing::Lifted {
            self.backing.ask(from, number);
            self.ask_voters();
        }
    }

    fn ask_voters(&mut self) {
        if let Some(token) = self.backing.next() {
            if self.origin.rules.has(Rule::VotersConfirm) {
                self.outbox.push(Output::Confirm(token));
            } else {
                self.confirmed(token, true);
            }
        }
    }

    fn confirmed(&mut self, token: u64, leads: bool) {
        for (from, number) in self.backing.answered(token) {
            if let Some(hosted) = self.hosted(from).filter(|_| leads)
                && let Some(node) = hosted.sessions.node(from)
                && hosted.run.keeps(&node)
            {
                hosted.run.grant(&node);
                let backed = Event::Backed { number };
                self.outbox.push(Output::Send(from, backed));
            }
        }
        self.ask_voters();
    }

    fn join(&mut self, now: Now, from: ConnId, join: Box<Join>) {
        if self.is_acceptable(from, &join) {
            self.about(now, from, join.run.clone(), Operation::Join(join));
        }
    }

    /// Whether a join can be taken in, whatever its run says to it; if not, its agent is told.
    fn is_acceptable(&mut self, from: ConnId, join: &Join) -> bool {
        if let Some(why) = runs::unusable(join) {
            let refused = Event::Refused(Refusal::Unusable(why));
            self.outbox.push(Output::Send(from, refused));
            return false;
        }
        if self.joined.get(&from).is_some_and(|run| *run != join.run) {
            let why = "it joined a second run on one connection";
            self.outbox.push(Output::Close(from, why.to_owned()));
            return false;
        }
        true
    }

    /// Applies an operation about a run that need not be known yet.
    fn about(&mut self, now: Now, from: ConnId, id: String, operation: Operation) {
        if !self.runs.contains_key(&id) {
            // Whatever there is to know about it is under its key, or on its way from there.
            if self.pending.iter().all(|(_, run, _)| *run != id) {
                self.outbox.push(Output::Read(keys::state(&id)));
            }
            return self.pending.push((from, id, operation));
        }
        match operation {
            Operation::Join(join) => {
                self.with(now, &id, |hosted, out| hosted.join(now, from, join, out));
            }
            Operation::Reattach(reattach) => {
                let before = self.before(&reattach);
                self.with(now, &id, |hosted, out| {
                    hosted.reattach(now, from, *reattach, before, out);
                });
            }
            Operation::Close { .. } => self.with(now, &id, |hosted, out| {
                hosted.apply(out, |run, out| run.close(out));
                out.push(Output::Send(from, Event::Closed));
            }),
            Operation::Status { .. } => self.with(now, &id, |hosted, out| {
                out.push(Output::Send(from, hosted.run.status()));
            }),
            _ => {}
        }
    }

    /// The fate of the coordinator that an agent obeyed last, as far as it is known.
    fn before(&mut self, reattach: &Reattach) -> Before {
        if reattach.leaves {
            return Before::Ours;
        }
        if self.takes_over(reattach) {
            return Before::HasEnded;
        }
        let (last, origin) = (&reattach.last, &self.origin);
        // The note of voters is everywhere, and so is what they know to be forgotten.
        let is_alone = origin.electors_heard.is_none() && origin.forgotten == 0;
        let is_elsewhere = !origin.recover && !origin.addresses.contains(&last.address);
        let ours = self.authority.map(|ours| ours.cluster);
        let hosted = self.runs.get(&reattach.join.run);
        let may_be = hosted.is_some_and(|hosted| hosted.run.may_be_of(last));
        match is_alone && is_elsewhere && may_be && ours.is_some_and(|ours| ours != last.cluster) {
            true => Before::MayLive,
            false => Before::Ours,
        }
    }

    /// Whether this coordinator, which has no note, takes over from the one that an agent obeyed last: one that
    /// has certainly ended, because it listened where this one does. It then has the next number in its cluster.
    fn takes_over(&mut self, reattach: &Reattach) -> bool {
        let last = &reattach.last;
        let (Some(ours), Some(_)) = (self.authority, self.began) else {
            return false;
        };
        let is_same = last.cluster == ours.cluster;
        if is_same && !self.has_taken_over {
            return false;
        }
        let mut runs = self.runs.values();
        let knows_rounds = self.has_note || runs.any(|hosted| hosted.run.knows_a_round());
        let has_ended = self.origin.recover || self.origin.addresses.contains(&last.address);
        if !is_same && (self.has_taken_over || !has_ended || knows_rounds) {
            return false;
        }
        if !is_same || last.epoch >= ours.epoch {
            let authority = Authority {
                cluster: last.cluster,
                epoch: last.epoch.saturating_add(1),
                ..ours
            };
            self.authority = Some(authority);
            for hosted in self.runs.values_mut() {
                hosted.authority = self.authority;
                hosted.run.had_coordinators(authority.epoch);
            }
            self.has_taken_over = true;
            self.outbox.push(Output::Adopt(authority));
        }
        true
    }

    /// The run of a connection that has joined one.
    fn hosted(&mut self, connection: ConnId) -> Option<&mut Hosted> {
        let run = self.joined.get(&connection)?;
        self.runs.get_mut(run)
    }

    fn closed(&mut self, now: Now, id: ConnId) {
        self.pending.retain(|(from, _, _)| *from != id);
        self.backing.closed(id);
        if let Some(run) = self.joined.remove(&id) {
            self.with(now, &run, |hosted, out| hosted.closed(now, id, out));
        }
    }

    fn found(&mut self, now: Now, key: &[u8], value: Option<&[u8]>) {
        let waiting: Vec<_> = self
            .pending
            .extract_if(.., |(_, run, _)| keys::state(run) == key)
            .collect();
        if let Some((_, id, _)) = waiting.first() {
            let mut hosted = Hosted::new(id, self);
            hosted.run.found(now, value, self.left.remove(id));
            // Torchrun's form in the store is of this coordinator's life, and newer.
            if let Some(note) = self.noted.remove(id).filter(|_| value.is_none()) {
                hosted.run.recover(now, note);
            }
            self.runs.insert(id.clone(), hosted);
            // If the run is forgotten again in between, the others wait until its key is read
            // again.
            for (from, id, operation) in waiting {
                self.about(now, from, id, operation);
            }
            return;
        }
        if let Some(run) = keys::run_of(key).filter(|run| self.left.has(run)) {
            let run = run.to_owned();
            if self.left.take(&run, value) {
                self.outbox.push(Output::Remove(key.to_vec()));
            }
            self.noted.remove(&run);
            if self.authority.is_some() {
                self.outbox.push(Output::Note { run, note: None });
            }
            return self.remove_left(now);
        }
        if let Some(Key::Master { run, round, field }) = self.key(key) {
            self.apply(now, &run, |run, out| {
                run.found_master(round, field, value, out);
            });
        }
    }

    fn stored(&mut self, now: Now, key: &[u8], value: Option<&[u8]>) {
        match self.key(key) {
            Some(Key::State(run)) => {
                self.apply(now, &run, |run, out| run.stored(now, value, out));
            }
            Some(Key::Master { run, round, field }) => {
                self.apply(now, &run, |run, out| {
                    run.stored_master(round, field, value, out);
                });
            }
            Some(Key::FirstRole { run, round }) => {
                self.apply(now, &run, |run, out| run.first_role(round, out));
            }
            None => {}
        }
    }

    fn tick(&mut self, now: Now) {
        while let Some((at, id)) = self.alarms.take_due(now.mono) {
            self.with(now, &id, |hosted, out| hosted.tick(now, at, out));
        }
        self.remove_left(now);
    }

    /// An agent that ends by its own decision is not started again, and so neither is the coordinator in it: nobody is
    /// to wait for that.
    fn end(&mut self) {
        let Some(authority) = self.authority.filter(|_| self.origin.host().is_some()) else {
            return;
        };
        let last = Authority {
            timeout: Duration::ZERO,
            ..authority
        };
        for (connection, run) in &self.joined {
            if let Some(hosted) = self.runs.get(run)
                && let Some(node) = hosted.sessions.node(*connection)
                && hosted.run.may_reattach(&node)
                && !hosted.run.is_undecided()
            {
                self.outbox
                    .push(Output::Send(*connection, Event::Attached(last)));
            }
        }
    }

    /// Looks at the next key that is to be removed.
    fn remove_left(&mut self, now: Now) {
        if let Some(run) = self.left.due(now) {
            self.outbox.push(Output::Read(keys::state(&run)));
        }
    }

    /// Which of the known runs a key belongs to, and as what.
    fn key(&self, key: &[u8]) -> Option<Key> {
        keys::parse(key, |run| self.runs.contains_key(run))
    }

    /// Changes a run.
    fn apply(&mut self, now: Now, id: &str, change: impl FnOnce(&mut Run, &mut Outbox<Effect>)) {
        self.with(now, id, |hosted, out| hosted.apply(out, change));
    }

    /// Changes the run of a connection, if it has a session.
    fn apply_from(
        &mut self,
        now: Now,
        from: ConnId,
        change: impl FnOnce(&mut Run, &NodeDesc, &mut Outbox<Effect>),
    ) {
        if let Some(id) = self.joined.get(&from).cloned() {
            self.with(now, &id, |hosted, out| {
                if let Some(node) = hosted.sessions.node(from) {
                    hosted.apply(out, |run, out| change(run, &node, out));
                }
            });
        }
    }

    /// Calls a run, and brings up to date what the coordinator keeps about it.
    fn with(&mut self, now: Now, id: &str, call: impl FnOnce(&mut Hosted, &mut Outbox<Output>)) {
        let Some(hosted) = self.runs.get_mut(id) else {
            return;
        };
        call(hosted, &mut self.outbox);
        if let Some(connection) = hosted.begun.take() {
            self.joined.insert(connection, id.to_owned());
        }
        for connection in hosted.ended.drain(..) {
            self.joined.remove(&connection);
        }
        let idle = hosted.run.is_idle();
        if idle && !hosted.run.is_recovering() {
            hosted.apply(&mut self.outbox, |run, out| run.flush(now, out));
        }
        match hosted.deadline().filter(|_| !idle) {
            Some(alarm) => self.alarms.set(id, alarm),
            None => {
                self.alarms.remove(id);
            }
        }
        if idle && let Some(hosted) = self.runs.remove(id) {
            if hosted.run.is_recovering() {
                // What people have said is about those who were missing when this coordinator
                // began.
                self.origin.recover &= !hosted.run.waits_for_word();
                // Those who came have vanished again; the others may still come.
                if let Some(note) = hosted.run.searched_record() {
                    self.noted.insert(id.to_owned(), note);
                }
                // The state has only those who came; the others are looked for with the note.
                if hosted.run.written_form().is_some() {
                    self.outbox.push(Output::Remove(keys::state(id)));
                }
                return self.left.add(now, id, &[]);
            }
            if self.authority.is_some() {
                let (run, note) = (id.to_owned(), hosted.run.final_record());
                self.outbox.push(Output::Note { run, note });
            }
            if let Some(form) = hosted.run.written_form() {
                self.left.add(now, id, form);
                self.remove_left(now);
            }
        }
    }
}
