//! The coordinator of rendezvous: the one writer of the state of many runs, beside a store server.
//!
//! Agents that share a state through compare-and-set race for every change of it, and all but one
//! lose each race. A coordinator instead takes single operations over a connection of each agent (the
//! [`wire`]), applies them in the order in which they come, and sends events about what follows.
//!
//! ```text
//!   operation ─┐                                        ┌─► Send: events for agents
//!   closed ────┼─► Coordinator ─► Sessions ─► Run (by id) ─┼─► Store: torchrun's form of the state, …
//!   time ──────┤                                        └─► Read: a key; Found follows at once
//!   reads and writes of torchrun's agents
//! ```
//!
//! * Joins commute: ranks follow the order of the nodes, not of their arrival.
//! * An operation costs O(log N), a round O(N): it is announced once per round that it does not hold
//!   any more.
//! * The same state stands under torchrun's key for agents that know nothing of coordinators. Its form
//!   is made when one of them reads it, and taken over when one of them has written; its
//!   compare-and-set fails if the state has changed since it was read.
//! * A run without a native agent is forgotten: everything about it is then under torchrun's key, which is
//!   removed after an hour.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | which run, which connection, when |
//! | `sessions.rs` | connections, and when each was last heard of; volatile |
//! | `runs/` | the state of runs; deterministic |
//! | `left_runs.rs` | runs without agents, whose keys are removed in the end |
//! | `keys.rs` | names of keys |
//! | [`wire`] | operations and events as bytes |

mod keys;
mod left_runs;
mod runs;
mod sessions;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};

use self::keys::Key;
use self::left_runs::LeftRuns;
use self::runs::{Effect, Run};
use self::sessions::Sessions;
use self::wire::{Event, Join, Operation, Refusal};
use crate::NodeDesc;
use crate::last_call::LastCall;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now};

pub use keys::PREFIX;
pub use left_runs::{KEPT_FOR, MOST as MOST_LEFT_RUNS};

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
    /// The deadline has come.
    Tick,
}

/// What a coordinator wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send an event to an agent.
    Send(ConnId, Event),
    /// Read a key at once, before anything else; answered with [`Input::Found`].
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
    alarms: BTreeSet<(Mono, String)>,
    left: LeftRuns,
    outbox: Outbox<Output>,
}

/// A run with its sessions.
#[derive(Debug, Default)]
struct Hosted {
    run: Run,
    sessions: Sessions,
    /// When it wants to be called, as registered.
    alarm: Option<Mono>,
    /// Connections whose session has ended.
    ended: Vec<ConnId>,
}

impl Hosted {
    fn new(id: &str) -> Self {
        Self {
            run: Run::new(id),
            ..Self::default()
        }
    }

    /// Changes the run, and turns what follows into outputs.
    fn apply(
        &mut self,
        out: &mut Outbox<Output>,
        change: impl FnOnce(&mut Run, &mut Outbox<Effect>),
    ) {
        let mut effects = Outbox::default();
        change(&mut self.run, &mut effects);
        while let Some(effect) = effects.pop() {
            out.push(match effect {
                Effect::Notify(node, event) => match self.sessions.connection(&node) {
                    Some(connection) => Output::Send(connection, event),
                    None => continue,
                },
                Effect::Gone(node) => {
                    self.ended.extend(self.sessions.detach(&node));
                    continue;
                }
                Effect::Read(key) => Output::Read(key),
                Effect::Store { key, value } => Output::Store { key, value },
                Effect::Remove(key) => Output::Remove(key),
                Effect::LastCall(call) => Output::LastCall {
                    run: self.run.id().to_owned(),
                    call,
                },
            });
        }
    }

    /// An agent joins over a connection.
    fn join(&mut self, now: Now, from: ConnId, join: Box<Join>, out: &mut Outbox<Output>) {
        let refusal = match self.run.is_closed() {
            true => Some(Refusal::Closed),
            false => {
                let refusal = self.sessions.refusal(from, &join.node);
                refusal.or_else(|| self.run.refusal(&join))
            }
        };
        if let Some(refusal) = refusal {
            return out.push(Output::Send(from, Event::Refused(refusal)));
        }
        self.run.adopt_settings(&join);
        let settings = self.run.settings();
        if let Some(old) = self.sessions.attach(now, from, &join.node, settings) {
            self.ended.push(old);
            let why = "its agent came back over another connection";
            out.push(Output::Close(old, why.to_owned()));
        }
        self.apply(out, |run, out| run.join(now, join, out));
    }

    /// The deadline `at` has come.
    fn tick(&mut self, now: Now, at: Mono, out: &mut Outbox<Output>) {
        let late = now.mono.since(at) > self.run.settings().keep_alive_interval;
        let silent = self.sessions.expire(now, late, self.run.settings());
        for (connection, node, heard) in silent {
            let how = format!(
                "it has not been heard of for {:.1} s",
                now.mono.since(heard).as_secs_f64()
            );
            self.apply(out, |run, out| run.lost(now, &node, &how, out));
            out.push(Output::Close(
                connection,
                format!("its agent is lost: {how}"),
            ));
        }
        self.apply(out, |run, out| run.tick(now, late, out));
    }

    fn deadline(&self) -> Option<Mono> {
        let deadlines = [self.sessions.deadline(), self.run.deadline()];
        deadlines.into_iter().flatten().min()
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
            Input::Closed(id) => self.closed(now, id),
            Input::Found { key, value } => self.found(now, key, value),
            Input::Touching { key, writes } => {
                if let Some(Key::State(run)) = self.key(key) {
                    self.apply(now, &run, |run, out| run.touching(now, writes, out));
                }
            }
            Input::Stored { key, value } => self.stored(now, key, value),
            Input::Tick => self.tick(now),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        let alarm = self.alarms.first().map(|(at, _)| *at);
        [alarm, self.left.deadline()].into_iter().flatten().min()
    }
}

impl Coordinator {
    /// Whether an agent takes part in a run over this connection.
    pub fn has_joined(&self, connection: ConnId) -> bool {
        self.joined.contains_key(&connection)
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
            Operation::Leave => {
                self.apply_from(now, from, |run, node, out| run.leave(now, node, out));
                self.outbox.push(Output::Send(from, Event::Left));
            }
            Operation::Heartbeat => {
                let run = self.joined.get(&from);
                let hosted = run.and_then(|run| self.runs.get_mut(run));
                let arrived = hosted.and_then(|hosted| {
                    hosted.sessions.heard(now, from);
                    let node = hosted.sessions.node(from)?;
                    hosted.run.arrived(&node)
                });
                self.outbox.push(Output::Send(from, Event::Alive(arrived)));
            }
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

    fn join(&mut self, now: Now, from: ConnId, join: Box<Join>) {
        if let Some(why) = runs::unusable(&join) {
            let refusal = Refusal::Unusable(why);
            return self
                .outbox
                .push(Output::Send(from, Event::Refused(refusal)));
        }
        if self.joined.get(&from).is_some_and(|run| *run != join.run) {
            return self.outbox.push(Output::Close(
                from,
                "it joined a second run on one connection".to_owned(),
            ));
        }
        self.about(now, from, join.run.clone(), Operation::Join(join));
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
                let mut joined = false;
                self.with(now, &id, |hosted, out| {
                    hosted.join(now, from, join, out);
                    joined = hosted.sessions.node(from).is_some();
                });
                if joined {
                    self.joined.insert(from, id);
                }
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

    fn closed(&mut self, now: Now, id: ConnId) {
        self.pending.retain(|(from, _, _)| *from != id);
        self.apply_from(now, id, |run, node, out| {
            run.lost(now, node, "its connection closed", out);
        });
        self.joined.remove(&id);
    }

    fn found(&mut self, now: Now, key: &[u8], value: Option<&[u8]>) {
        let waiting: Vec<_> = self
            .pending
            .extract_if(.., |(_, run, _)| keys::state(run) == key)
            .collect();
        if let Some((_, id, _)) = waiting.first() {
            let mut hosted = Hosted::new(id);
            hosted.run.found(now, value, self.left.remove(id));
            self.runs.insert(id.clone(), hosted);
            // All of them before the run may be forgotten again.
            let mut asked = waiting.into_iter().peekable();
            while let Some((from, id, operation)) = asked.next() {
                if !self.runs.contains_key(&id) {
                    // Forgotten again in between: everything is under the key, which is read anew.
                    self.about(now, from, id, operation);
                    self.pending.extend(asked);
                    return;
                }
                self.about(now, from, id, operation);
            }
            return;
        }
        if let Some(run) = keys::run_of(key).filter(|run| self.left.has(run)) {
            if self.left.take(run, value) {
                self.outbox.push(Output::Remove(key.to_vec()));
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
        while let Some((at, _)) = self.alarms.first()
            && *at <= now.mono
        {
            let (at, id) = self.alarms.pop_first().expect("it was just there");
            self.with(now, &id, |hosted, out| {
                hosted.alarm = None;
                hosted.tick(now, at, out);
            });
        }
        self.remove_left(now);
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
        for connection in hosted.ended.drain(..) {
            self.joined.remove(&connection);
        }
        let idle = hosted.run.is_idle();
        if idle {
            hosted.apply(&mut self.outbox, |run, out| run.flush(now, out));
        }
        let alarm = hosted.deadline().filter(|_| !idle);
        if alarm != hosted.alarm {
            if let Some(at) = hosted.alarm.take() {
                self.alarms.remove(&(at, id.to_owned()));
            }
            hosted.alarm = alarm;
            if let Some(at) = alarm {
                self.alarms.insert((at, id.to_owned()));
            }
        }
        if idle
            && let Some(hosted) = self.runs.remove(id)
            && let Some(form) = hosted.run.written_form()
        {
            self.left.add(now, id, form);
            self.remove_left(now);
        }
    }
}
