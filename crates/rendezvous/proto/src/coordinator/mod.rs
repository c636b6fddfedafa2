//! The coordinator of rendezvous decides for the native agents of many runs.
//!
//! The coordinator runs beside a store server. Agents that share a state through compare-and-set
//! race for every change, and all but one lose each race. A coordinator instead receives operations
//! from each agent over a connection (see [`wire`]). It applies them in the order of their arrival,
//! and sends events about the results.
//!
//! ```text
//!   operation ─┐                                        ┌─► Send: events for agents
//!   closed ────┼─► Coordinator ─► Sessions ─► Run (by id) ─┼─► Store: the state for torchrun, …
//!   time ──────┤                                        └─► Read: a key; Found follows immediately
//!   reads and writes of torchrun's agents
//! ```
//!
//! * Joins of one round commute: ranks depend on the names of the nodes and on their ranks in the
//!   last round, not on the order of arrival.
//! * Most operations cost O(log N), and a round costs O(N), because the coordinator announces the
//!   end of a round only once.
//! * Agents of torchrun find the same state under their key. The coordinator writes their form of
//!   it before one of them reads the key, and reads it after one of them has written. Their
//!   compare-and-set fails if the state has changed since they read it.
//! * The coordinator forgets a run without native agents. Its state is then under torchrun's key.
//!   The coordinator removes the key later (`left_runs.rs`), unless its value has changed.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | finds the run of each input, and calls it at its deadlines |
//! | `operations.rs` | operations of agents |
//! | `hosted.rs` | a run with its sessions |
//! | `sessions.rs` | connections of agents, and the agents declared lost; volatile |
//! | `end.rs` | the end of a connection, and the proof that it gives |
//! | `runs/` | the state of runs; deterministic |
//! | `backing.rs` | questions of agents: does this coordinator have a majority? |
//! | `left_runs.rs` | runs without agents, and the removal of their keys |
//! | `gate.rs` | outputs that wait until the record is kept |
//! | `note.rs` | the record for the next coordinator |
//! | `deadlines.rs` | deadlines by key |
//! | `keys.rs` | names of keys |
//! | `viewers.rs` | messages for agents that have a viewer; volatile |
//! | [`wire`] | operations and events as bytes |

mod backing;
mod deadlines;
mod end;
pub mod gate;
mod hosted;
mod keys;
mod left_runs;
pub mod note;
mod operations;
mod runs;
mod sessions;
mod viewers;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::backing::Backing;
use self::deadlines::Deadlines;
use self::hosted::Hosted;
use self::keys::{Field, Key};
use self::left_runs::LeftRuns;
use self::runs::Run;
use self::sessions::Session;
use self::wire::{Authority, Event, Operation};
use crate::group::Wait;
use crate::last_call::LastCall;
use crate::recovering::Recovering;
use crate::{NodeDesc, Rule, silence};
use rdzv_core::ident::ConnId;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now, earliest};

pub use end::{LOST_AFTER_END, WORKERS_END_WITHIN};
pub use keys::PREFIX;
pub use left_runs::{KEPT_FOR, MOST as MOST_LEFT_RUNS};
pub use note::{Note, RunNote};
pub use runs::RECOVERY_WINDOW;
pub use sessions::REATTACH_WITHIN;

/// Event that a coordinator must handle.
#[derive(Debug)]
pub enum Input<'a> {
    /// An agent has sent an operation.
    Request {
        /// The agent's connection.
        from: ConnId,
        /// The operation's opcode.
        opcode: u8,
        /// The operation's fields.
        payload: &'a [u8],
    },
    /// A connection will close because the other machine no longer responds.
    Silent(ConnId),
    /// The peer of a connection has ended its stream cleanly.
    ///
    /// The connection will close.
    EndOfStream {
        /// The connection.
        id: ConnId,
        /// Numeric address and port of the peer, if known.
        peer: Option<String>,
    },
    /// A connection has closed.
    Closed(ConnId),
    /// The answer to [`Output::Read`].
    Found {
        /// The key.
        key: &'a [u8],
        /// The value; `None` if the store does not have the key.
        value: Option<&'a [u8]>,
    },
    /// A store client, usually torchrun's agent, is about to read or change a key.
    Touching {
        /// The key.
        key: &'a [u8],
        /// `true` if the client may change the key.
        writes: bool,
    },
    /// A store client, usually an agent of torchrun, may have changed a key.
    Stored {
        /// The key.
        key: &'a [u8],
        /// The current value; `None` if the store does not have the key.
        value: Option<&'a [u8]>,
    },
    /// The answer to [`Output::Confirm`].
    Confirmed {
        /// Number of the question.
        token: u64,
        /// `true` if this coordinator was the leader after it had sent the question.
        leads: bool,
    },
    /// The number of voters behind the coordinator.
    ///
    /// With three or more, rounds can have a [fence](crate::fence).
    Voters(u32),
    /// The coordinator's process has decided to exit.
    Ending,
    /// The coordinator's deadline has passed.
    Tick,
}

/// Action that a coordinator requests from its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send an event to an agent.
    Send(ConnId, Event),
    /// Read a key immediately, before any other output.
    ///
    /// The answer is [`Input::Found`].
    Read(Vec<u8>),
    /// Store a value.
    Store {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Remove a key.
    Remove(Vec<u8>),
    /// Log that a round with enough nodes waits for more.
    LastCall {
        /// The run.
        run: String,
        /// The last call.
        call: LastCall,
    },
    /// Log that the last spare node has joined a round.
    LastSpare {
        /// The run.
        run: String,
        /// The round.
        round: u64,
    },
    /// Log the progress of a state recovery.
    Recovering {
        /// The run.
        run: String,
        /// Progress of the recovery.
        recovering: Recovering,
    },
    /// Save this record for the next coordinator.
    ///
    /// The driver saves it before it applies any later output. Only a restartable coordinator emits
    /// it.
    Note {
        /// The run.
        run: String,
        /// The record of the run; `None` removes it.
        note: Option<RunNote>,
    },
    /// Save this authority for the next coordinator.
    ///
    /// It names the cluster that this coordinator has joined, and its epoch there. The driver saves
    /// it before it applies any later output.
    Adopt(Authority),
    /// Ask the other voters to confirm that this is the coordinator.
    ///
    /// The answer is [`Input::Confirmed`]. Only a coordinator with voters asks this.
    Confirm(u64),
    /// Close a connection, for the specified reason.
    ///
    /// The peer has sent invalid data, is lost, or has opened another connection.
    Close(ConnId, String),
}

/// The server side of native rendezvous, for any number of runs.
#[derive(Debug, Default)]
pub struct Coordinator {
    runs: BTreeMap<String, Hosted>,
    /// The run of each connection that has joined one.
    joined: BTreeMap<ConnId, String>,
    /// Operations that wait until the key of their run has been read.
    pending: Vec<(ConnId, String, Operation)>,
    /// Next deadline of each run with a deadline.
    alarms: Deadlines<String>,
    /// Authority of this coordinator; `None` if it is not restartable.
    authority: Option<Authority>,
    origin: Origin,
    /// Start of this coordinator; `None` if it is not restartable.
    ///
    /// The coordinator knows earlier events from the record and from agents.
    began: Option<Mono>,
    /// `true` if the record of the previous coordinator contained any run.
    has_note: bool,
    /// `true` if the coordinator follows one that has left no record.
    has_taken_over: bool,
    /// Previous coordinator's records of runs that no agent has requested yet.
    noted: BTreeMap<String, RunNote>,
    left: LeftRuns,
    backing: Backing,
    /// Number of voters of the group; 0 without a group.
    voters: u32,
    outbox: Outbox<Output>,
}

/// Location of a coordinator, and facts about its predecessors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// Instance of the agent in the same process, if there is one.
    pub agent: Option<u64>,
    /// Numeric addresses and ports at which the coordinator listens, all local.
    ///
    /// If agents reached another coordinator at one of them, that coordinator has certainly ended,
    /// because a listening socket has one owner.
    pub addresses: BTreeSet<String>,
    /// `true` if the user confirms that all earlier coordinators have exited.
    ///
    /// The user also confirms this of all missing agents.
    pub recover: bool,
    /// Number of times that all decisions of earlier coordinators were forgotten.
    ///
    /// New rounds get numbers that differ from those of the forgotten rounds.
    pub forgotten: u32,
    /// Last contact of an elector with an earlier leader, if this one was elected.
    pub electors_heard: Option<Mono>,
    /// Maximum silence of a machine, if known before the first agent joins.
    pub node_timeout: Option<Duration>,
    /// All rules, except in a simulation.
    pub rules: Rules<Rule>,
}

impl Origin {
    /// Returns the agent whose exit ends the coordinator permanently.
    ///
    /// `None` if voters have elected the coordinator, because another coordinator will follow it.
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
                if let Some(session) = self.session(id) {
                    session.is_silent = true;
                }
            }
            Input::EndOfStream { id, peer } => {
                let rules = self.origin.rules;
                if let Some(session) = self.session(id) {
                    session.end.of_stream(peer.as_deref(), rules);
                }
            }
            Input::Closed(id) => self.closed(now, id),
            Input::Found { key, value } => self.found(now, key, value),
            Input::Touching { key, writes } => {
                if let Some(Key::State(run)) = self.key(key) {
                    self.apply(now, &run, |run| run.touching(now, writes));
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
        earliest([self.alarms.next(), self.left.deadline()])
    }
}

impl Coordinator {
    /// Creates a coordinator without a successor, with these rules.
    pub fn with_rules(rules: Rules<Rule>) -> Self {
        let origin = Origin {
            rules,
            ..Origin::default()
        };
        Self {
            origin,
            ..Self::default()
        }
    }

    /// Creates a coordinator that will have a successor if it dies.
    ///
    /// `note` is the record of the previous coordinator, with the authority of this one.
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

    /// `true` if an agent has joined a run over this connection.
    pub fn has_joined(&self, connection: ConnId) -> bool {
        self.joined.contains_key(&connection)
    }

    /// Returns the time without an acknowledgement that ends a connection.
    ///
    /// `None` if no agent has joined over the connection, or if the coordinator is not restartable.
    pub fn silence(&self, connection: ConnId) -> Option<Duration> {
        let hosted = self.runs.get(self.joined.get(&connection)?)?;
        self.authority?;
        Some(silence::unacknowledged(hosted.run.settings().node_timeout))
    }

    /// Returns this coordinator's authority; `None` if it is not restartable.
    pub fn authority(&self) -> Option<Authority> {
        self.authority
    }

    /// Returns the state of the first run that is waiting for its members.
    pub fn waits(&self, now: Now) -> Option<Wait> {
        self.runs.iter().find_map(|(id, hosted)| {
            let recovering = hosted.run.recovering(now).filter(|it| !it.is_over())?;
            Some(Wait::of_recovery(id, &recovering))
        })
    }

    /// Returns the number of voters of the group; 0 without a group.
    pub fn voters(&self) -> u32 {
        self.voters
    }

    /// `true` if agents of torchrun participate in any run.
    pub fn has_torchrun(&self) -> bool {
        self.runs.values().any(|hosted| hosted.run.has_torchrun())
    }

    /// `true` if any run has a native agent.
    ///
    /// If not, the coordinator can ignore all accesses to keys.
    pub fn is_active(&self) -> bool {
        !self.runs.is_empty()
    }

    fn count_voters(&mut self, now: Now, voters: u32) {
        self.voters = voters;
        let runs: Vec<String> = self.runs.keys().cloned().collect();
        for run in runs {
            self.apply(now, &run, |run| run.count_voters(voters));
        }
    }

    fn hosted(&mut self, connection: ConnId) -> Option<&mut Hosted> {
        let run = self.joined.get(&connection)?;
        self.runs.get_mut(run)
    }

    fn session(&mut self, connection: ConnId) -> Option<&mut Session> {
        self.hosted(connection)?.sessions.session(connection)
    }

    fn closed(&mut self, now: Now, id: ConnId) {
        self.pending.retain(|(from, _, _)| *from != id);
        self.backing.closed(id);
        if let Some(run) = self.joined.remove(&id) {
            self.with(now, &run, |hosted| hosted.closed(now, id));
        }
    }

    fn found(&mut self, now: Now, key: &[u8], value: Option<&[u8]>) {
        let waiting: Vec<_> = self
            .pending
            .extract_if(.., |(_, run, _)| keys::state(run) == key)
            .collect();
        if let Some((_, id, _)) = waiting.first() {
            let mut hosted = Hosted::new(id, self);
            // The time of that write is no longer known.
            let written = self.left.remove(id).then_some(Mono::ZERO);
            hosted.run.found(now, value, written);
            // A state in the store was written since this coordinator started, so it is newer.
            if let Some(note) = self.noted.remove(id).filter(|_| value.is_none()) {
                hosted.run.recover(now, note);
            }
            self.runs.insert(id.clone(), hosted);
            // If an operation makes the coordinator forget the run again, the next ones wait until
            // it has read the key again.
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
        if let Some(Key::OfFirst { run, round, field }) = self.key(key) {
            self.apply(now, &run, |run| run.found_master(round, field, value));
        }
    }

    fn stored(&mut self, now: Now, key: &[u8], value: Option<&[u8]>) {
        match self.key(key) {
            Some(Key::State(run)) => {
                self.apply(now, &run, |run| run.stored(now, value));
            }
            Some(Key::OfFirst { run, round, field }) if field != Field::Addr => {
                self.apply(now, &run, |run| run.stored_by_first(round));
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: Now) {
        while let Some((at, id)) = self.alarms.take_due(now.mono) {
            self.with(now, &id, |hosted| hosted.tick(now, at));
        }
        self.remove_left(now);
    }

    /// Notifies the agents that no coordinator will follow this one.
    ///
    /// An agent that decides to exit is not restarted, and neither is a coordinator in its process.
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

    /// Requests the next key that may have to be removed.
    fn remove_left(&mut self, now: Now) {
        if let Some(run) = self.left.due(now) {
            self.outbox.push(Output::Read(keys::state(&run)));
        }
    }

    fn key(&self, key: &[u8]) -> Option<Key> {
        keys::parse(key, |run| self.runs.contains_key(run))
    }

    fn apply(&mut self, now: Now, id: &str, change: impl FnOnce(&mut Run)) {
        self.with(now, id, |hosted| hosted.apply(change));
    }

    /// Changes the run of a connection, if it has a session.
    fn apply_from(&mut self, now: Now, from: ConnId, change: impl FnOnce(&mut Run, &NodeDesc)) {
        if let Some(id) = self.joined.get(&from).cloned() {
            self.with(now, &id, |hosted| {
                if let Some(node) = hosted.sessions.node(from) {
                    hosted.apply(|run| change(run, &node));
                }
            });
        }
    }

    /// Calls a run, and updates the coordinator's data about it.
    fn with(&mut self, now: Now, id: &str, call: impl FnOnce(&mut Hosted)) {
        let Some(hosted) = self.runs.get_mut(id) else {
            return;
        };
        call(hosted);
        hosted.apply(|run| run.answer_succeeded(now));
        if let Some(connection) = hosted.begun.take() {
            self.joined.insert(connection, id.to_owned());
        }
        for connection in hosted.ended.drain(..) {
            self.joined.remove(&connection);
        }
        let idle = hosted.run.is_idle();
        if idle && !hosted.run.is_recovering() {
            hosted.apply(|run| run.flush(now));
        }
        while let Some(output) = hosted.out.pop() {
            self.outbox.push(output);
        }
        match hosted.deadline().filter(|_| !idle) {
            Some(alarm) => self.alarms.set(id, alarm),
            None => {
                self.alarms.remove(id);
            }
        }
        if idle && let Some(hosted) = self.runs.remove(id) {
            if hosted.run.is_recovering() {
                // The user's confirmation is about agents that were missing when this coordinator
                // started.
                self.origin.recover &= !hosted.run.waits_for_word();
                // The agents that had connected are lost again; the others may still connect.
                if let Some(note) = hosted.run.searched_record() {
                    self.noted.insert(id.to_owned(), note);
                }
                // The state contains only agents that connected. The record names the others.
                if hosted.run.has_written_form() {
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
