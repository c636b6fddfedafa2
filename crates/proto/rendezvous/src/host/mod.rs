//! The host of rendezvous: the one writer of the state of many runs, beside a store server.
//!
//! Agents that share a state through compare-and-set race for every change of it, and all but one
//! lose each race. A host instead takes single operations over a connection of each agent (the
//! [`wire`]), applies them in the order in which they come, and tells agents what has become of it.
//!
//! ```text
//!   operation ─┐                        ┌─► Send: events for agents
//!   closed ────┼─► Host ─► Run (by id) ─┼─► Store: the stock form of the state, MASTER_ADDR, …
//!   time ──────┤                        └─► Look: what a key holds, answered by Found at once
//!   stock agents' reads and writes
//! ```
//!
//! * Joins commute: ranks follow the order of the nodes, not of their arrival.
//! * An operation costs O(log N), a round O(N): agents are told once per round that it does not hold
//!   any more.
//! * The same state stands under the stock key for agents that know nothing of hosts. Its form is
//!   made when one of them looks, and taken over when one of them has written; its compare-and-set
//!   fails if the state has moved on since it looked.
//! * A run without a native agent is forgotten: all there is to know is then under the stock key.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | which run, which connection, when |
//! | `run.rs` | one run: who is in it, and what its agents ask for |
//! | `membership.rs` | coming and going, and who is told |
//! | `round.rs` | when a round is complete, and what follows |
//! | `master.rs` | where the workers of a round meet |
//! | `stock.rs` | the stock form of the state, and what stock agents write |
//! | `keys.rs` | names of keys |
//! | [`wire`] | operations and events as bytes |

mod keys;
mod master;
mod membership;
mod record;
mod round;
mod run;
mod stock;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};

use self::keys::Key;
use self::run::Run;
use self::wire::{Event, Join, Operation, Refusal};
use crate::last_call::LastCall;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now};

pub use keys::PREFIX;

/// What happened to a host.
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
    /// The answer to [`Output::Look`].
    Found {
        /// The key.
        key: &'a [u8],
        /// What it holds.
        value: Option<&'a [u8]>,
    },
    /// A stock agent is about to read a key, or to change it.
    Touching {
        /// The key.
        key: &'a [u8],
        /// Whether it may change it.
        writes: bool,
    },
    /// A stock agent may have changed a key.
    Stored {
        /// The key.
        key: &'a [u8],
        /// What it holds now.
        value: Option<&'a [u8]>,
    },
    /// The deadline has come.
    Tick,
}

/// What a host wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Tell an agent.
    Send(ConnId, Event),
    /// Say at once what a key holds, before anything else.
    Look(Vec<u8>),
    /// Store a value.
    Store {
        /// Where.
        key: Vec<u8>,
        /// What.
        value: Vec<u8>,
    },
    /// Take a key away.
    Remove(Vec<u8>),
    /// Say to people that a round which has enough nodes waits for more.
    LastCall {
        /// Of which run.
        run: String,
        /// What is waited for.
        call: LastCall,
    },
    /// End a connection, which speaks another language or has been replaced.
    Close(ConnId, String),
}

/// The server side of native rendezvous, for any number of runs.
#[derive(Debug, Default)]
pub struct Host {
    runs: BTreeMap<String, Run>,
    /// The run of each connection that has joined one.
    seats: BTreeMap<ConnId, String>,
    /// What is asked about runs whose key has not been looked at yet.
    pending: Vec<(ConnId, String, Operation)>,
    /// When each run wants to be called, as registered.
    alarms: BTreeSet<(Mono, String)>,
    outbox: Outbox<Output>,
}

impl Machine for Host {
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
                    self.with(now, &run, |run, out| run.touching(now, writes, out));
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
        self.alarms.first().map(|(at, _)| *at)
    }
}

impl Host {
    /// Whether any run has a native agent; if not, nothing that happens to keys concerns the host.
    pub fn is_active(&self) -> bool {
        !self.runs.is_empty()
    }

    fn operate(&mut self, now: Now, from: ConnId, operation: Operation) {
        match operation {
            Operation::Join(join) => self.join(now, from, join),
            Operation::Close { run } => {
                self.about(now, from, run.clone(), Operation::Close { run });
            }
            Operation::Status { run } => {
                self.about(now, from, run.clone(), Operation::Status { run });
            }
            Operation::Leave => {
                if let Some(run) = self.seats.get(&from).cloned() {
                    self.with(now, &run, |run, out| run.leave(now, from, out));
                }
                self.outbox.push(Output::Send(from, Event::Left));
            }
            Operation::Heartbeat => {
                if let Some(run) = self.seats.get(&from)
                    && let Some(run) = self.runs.get_mut(run)
                {
                    run.heartbeat(now, from);
                }
                self.outbox.push(Output::Send(from, Event::Alive));
            }
            Operation::Failed { reason } => {
                if let Some(run) = self.seats.get(&from).cloned() {
                    self.with(now, &run, |run, out| run.failed(from, &reason, out));
                }
            }
            Operation::Master { round, addr, port } => {
                if let Some(run) = self.seats.get(&from).cloned() {
                    self.with(now, &run, |run, out| {
                        run.publish_master(from, round, addr, port, out);
                    });
                }
            }
        }
    }

    fn join(&mut self, now: Now, from: ConnId, join: Box<Join>) {
        if let Some(why) = run::unusable(&join) {
            let refusal = Refusal::Unusable(why);
            return self
                .outbox
                .push(Output::Send(from, Event::Refused(refusal)));
        }
        if self.seats.get(&from).is_some_and(|run| *run != join.run) {
            return self.outbox.push(Output::Close(
                from,
                "it joined a second run on one connection".to_owned(),
            ));
        }
        self.about(now, from, join.run.clone(), Operation::Join(join));
    }

    /// Carries out what concerns a run that need not be known yet.
    fn about(&mut self, now: Now, from: ConnId, id: String, operation: Operation) {
        if !self.runs.contains_key(&id) {
            // Whatever there is to know about it is under its key, or on its way from there.
            if self.pending.iter().all(|(_, run, _)| *run != id) {
                self.outbox.push(Output::Look(keys::state(&id)));
            }
            return self.pending.push((from, id, operation));
        }
        match operation {
            Operation::Join(join) => {
                let mut seated = false;
                self.with(now, &id, |run, out| {
                    seated = run.join(now, from, join, out);
                });
                if seated {
                    self.seats.insert(from, id);
                }
            }
            Operation::Close { .. } => self.with(now, &id, |run, out| {
                run.close(out);
                out.push(Output::Send(from, Event::Closed));
            }),
            Operation::Status { .. } => self.with(now, &id, |run, out| {
                out.push(Output::Send(from, run.status()));
            }),
            _ => {}
        }
    }

    fn closed(&mut self, now: Now, id: ConnId) {
        self.pending.retain(|(from, _, _)| *from != id);
        if let Some(run) = self.seats.remove(&id) {
            self.with(now, &run, |run, out| {
                run.lost(now, id, "its connection closed", out);
            });
        }
    }

    fn found(&mut self, now: Now, key: &[u8], value: Option<&[u8]>) {
        let waiting: Vec<_> = self
            .pending
            .extract_if(.., |(_, run, _)| keys::state(run) == key)
            .collect();
        if let Some((_, id, _)) = waiting.first() {
            let mut run = Run::new(id);
            run.found(now, value);
            self.runs.insert(id.clone(), run);
            // All of them before the run may be forgotten again.
            let mut asked = waiting.into_iter().peekable();
            while let Some((from, id, operation)) = asked.next() {
                if !self.runs.contains_key(&id) {
                    // Forgotten again in between: everything is under the key, which is looked at anew.
                    self.about(now, from, id, operation);
                    self.pending.extend(asked);
                    return;
                }
                self.about(now, from, id, operation);
            }
            return;
        }
        if let Some(Key::Master { run, round, field }) = self.key(key) {
            self.with(now, &run, |run, out| {
                run.found_master(round, field, value, out);
            });
        }
    }

    fn stored(&mut self, now: Now, key: &[u8], value: Option<&[u8]>) {
        match self.key(key) {
            Some(Key::State(run)) => {
                self.with(now, &run, |run, out| run.stored(now, value, out));
            }
            Some(Key::Master { run, round, field }) => {
                self.with(now, &run, |run, out| {
                    run.stored_master(round, field, value, out);
                });
            }
            Some(Key::FirstRole { run, round }) => {
                self.with(now, &run, |run, out| run.first_role(round, out));
            }
            None => {}
        }
    }

    fn tick(&mut self, now: Now) {
        while let Some((at, _)) = self.alarms.first()
            && *at <= now.mono
        {
            let (at, id) = self.alarms.pop_first().expect("it was just there");
            self.with(now, &id, |run, out| {
                run.alarm = None;
                run.tick(now, at, out);
            });
        }
    }

    /// Which of the known runs a key belongs to, and as what.
    fn key(&self, key: &[u8]) -> Option<Key> {
        keys::parse(key, |run| self.runs.contains_key(run))
    }

    /// Calls a run, and brings up to date what the host keeps about it.
    fn with(&mut self, now: Now, id: &str, call: impl FnOnce(&mut Run, &mut Outbox<Output>)) {
        let Some(run) = self.runs.get_mut(id) else {
            return;
        };
        call(run, &mut self.outbox);
        for seat in run.unseated.drain(..) {
            self.seats.remove(&seat);
        }
        let alarm = match run.is_idle() {
            true => {
                run.rest(now, &mut self.outbox);
                None
            }
            false => run.deadline(),
        };
        if alarm != run.alarm || run.is_idle() {
            if let Some(at) = run.alarm.take() {
                self.alarms.remove(&(at, id.to_owned()));
            }
            run.alarm = alarm;
            if let Some(at) = alarm {
                self.alarms.insert((at, id.to_owned()));
            }
        }
        if run.is_idle() {
            self.runs.remove(id);
        }
    }
}
