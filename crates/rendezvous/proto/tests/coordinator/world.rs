//! A coordinator, the keys of its store, and agents that are only connections.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_rendezvous_proto::apply::apply;
use rdzv_rendezvous_proto::coordinator::wire::{
    Event, HeldRound, Join, LastCoordinator, Operation, Program, Reattach,
};
use rdzv_rendezvous_proto::coordinator::{Coordinator, Input, Note, Origin, Output};
use rdzv_rendezvous_proto::decide::Action;
use rdzv_rendezvous_proto::last_call::LastCall;
use rdzv_rendezvous_proto::recovering::Recovering;
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState, Settings, codec};

pub(crate) const STATE: &str = "/torch.rendezvous.run";

pub(crate) struct World {
    pub(crate) coordinator: Coordinator,
    pub(crate) now: Now,
    pub(crate) keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The events that each agent has received and not taken yet.
    pub(crate) received: BTreeMap<u32, Vec<Event>>,
    /// Number of pulses that each agent has received.
    pub(crate) pulses: BTreeMap<u32, u32>,
    pub(crate) closed: Vec<u32>,
    /// The last calls that were logged.
    pub(crate) last_calls: Vec<LastCall>,
    /// Rounds for which the last spare was logged.
    pub(crate) last_spares: Vec<u64>,
    pub(crate) settings: Settings,
    /// The program of the agents that join next.
    pub(crate) program: Option<Program>,
    /// Number of the next join of each agent.
    pub(crate) attempt: u32,
    /// Epoch of the last coordinator of agents that reattach.
    pub(crate) obeyed: u32,
    /// Instances that the agents that join next replace.
    pub(crate) replaces: Vec<u64>,
    /// Address of the last coordinator of agents that reattach.
    pub(crate) reached: String,
    /// `true` if agents send the addresses of their connections.
    pub(crate) says_from: bool,
    /// The record for the next coordinator, if there will be one.
    pub(crate) note: Option<Note>,
    /// The log of recoveries.
    pub(crate) recoveries: Vec<Recovering>,
}

/// Returns the node of agent `number`, whose connection has the same number.
pub(crate) fn node(number: u32) -> NodeDesc {
    NodeDesc::new(format!("n{number:03}"), 1)
}

/// Returns a round as the agent with this rank knows it.
pub(crate) fn held_round(round: u64, rank: u32, size: u32) -> HeldRound {
    HeldRound {
        round,
        rank,
        master: Some(("n001".to_owned(), 4000)),
        succeeded: false,
        size,
        host: None,
    }
}

/// Returns the round that an agent has received, if any.
pub(crate) fn forms(world: &mut World, number: u32) -> Option<u64> {
    let events = world.take(number);
    events.iter().find_map(|event| match event {
        Event::Formed { round, .. } => Some(*round),
        _ => None,
    })
}

/// Returns the peer address of an agent's connections.
pub(crate) fn peer_address(instance: u64) -> String {
    format!("10.0.1.{instance}:50000")
}

/// Address of the coordinator.
pub(crate) const ADDRESS: &str = "10.0.0.1:29400";

/// Returns the origin of a coordinator at that address.
pub(crate) fn origin() -> Origin {
    Origin {
        addresses: [ADDRESS.to_owned()].into(),
        ..Origin::default()
    }
}

impl World {
    pub(crate) fn new(min: u32, max: u32) -> Self {
        Self {
            coordinator: Coordinator::default(),
            now: Now {
                mono: Mono::ZERO,
                wall: Wall::from_unix_micros(1_700_000_000_000_000),
            },
            keys: BTreeMap::new(),
            received: BTreeMap::new(),
            pulses: BTreeMap::new(),
            closed: Vec::new(),
            last_calls: Vec::new(),
            last_spares: Vec::new(),
            settings: Settings::new(min, max),
            program: None,
            attempt: 1,
            obeyed: 0,
            replaces: Vec::new(),
            reached: ADDRESS.to_owned(),
            says_from: false,
            note: None,
            recoveries: Vec::new(),
        }
    }

    /// Creates a world with a restartable coordinator.
    pub(crate) fn restartable(min: u32, max: u32) -> Self {
        let mut world = Self::new(min, max);
        let note = Note::new(7, Duration::from_secs(60));
        world.coordinator = Coordinator::restartable(world.now, note.clone(), origin());
        world.note = Some(note);
        world.program = Some(Program::new("train.py", b"", true));
        world
    }

    /// Replaces the coordinator with one that starts with its record.
    ///
    /// All connections and keys are lost.
    pub(crate) fn restart(&mut self) {
        self.restart_as(origin());
    }

    /// Replaces the coordinator as [`World::restart`] does, with an origin.
    pub(crate) fn restart_as(&mut self, origin: Origin) {
        let note = self.note.as_mut().unwrap();
        note.authority.epoch += 1;
        self.coordinator = Coordinator::restartable(self.now, note.clone(), origin);
        self.received.clear();
        self.keys.clear();
    }

    /// Replaces the coordinator with one without a record.
    pub(crate) fn start_unnoted(&mut self, origin: Origin) {
        let note = Note::new(8, Duration::from_secs(60));
        self.coordinator = Coordinator::restartable(self.now, note.clone(), origin);
        self.note = Some(note);
        self.received.clear();
        self.keys.clear();
    }

    pub(crate) fn handle(&mut self, input: Input<'_>) {
        self.coordinator.handle(self.now, input);
        let mut reads = self.apply();
        while !reads.is_empty() {
            let key = reads.remove(0);
            let value = self.keys.get(&key).cloned();
            let value = value.as_deref();
            self.coordinator
                .handle(self.now, Input::Found { key: &key, value });
            reads.extend(self.apply());
        }
    }

    fn apply(&mut self) -> Vec<Vec<u8>> {
        let mut reads = Vec::new();
        while let Some(output) = self.coordinator.poll_output() {
            match output {
                // This is an answer to a heartbeat, or a pulse for a kernel to acknowledge.
                Output::Send(to, Event::Alive(None)) => {
                    *self.pulses.entry(to.0).or_default() += 1;
                }
                Output::Send(to, event) => self.received.entry(to.0).or_default().push(event),
                Output::LastCall { call, .. } => self.last_calls.push(call),
                Output::LastSpare { round, .. } => self.last_spares.push(round),
                Output::Read(key) => reads.push(key),
                Output::Store { key, value } => drop(self.keys.insert(key, value)),
                Output::Remove(key) => drop(self.keys.remove(&key)),
                Output::Close(id, _) => self.closed.push(id.0),
                Output::Recovering { recovering, .. } => self.recoveries.push(recovering),
                Output::Adopt(authority) => self.note.as_mut().unwrap().adopt(authority),
                Output::Note { run, note } => self.note.as_mut().unwrap().update(run, note),
                Output::Confirm(token) => {
                    let leads = true;
                    self.coordinator
                        .handle(self.now, Input::Confirmed { token, leads });
                }
            }
        }
        reads
    }

    pub(crate) fn operate(&mut self, from: u32, operation: &Operation) {
        let mut bytes = Vec::new();
        operation.write(&mut bytes);
        self.handle(Input::Request {
            from: ConnId(from),
            opcode: bytes[0],
            payload: &bytes[9..],
        });
    }

    pub(crate) fn join(&mut self, number: u32) {
        self.join_as(number, node(number), u64::from(number));
    }

    /// Lets an agent join that does not know its number of workers.
    pub(crate) fn join_without_size(&mut self, number: u32) {
        let join = Join {
            local_world_size: 0,
            ..self.join_of(node(number), u64::from(number))
        };
        self.operate(number, &Operation::Join(Box::new(join)));
    }

    pub(crate) fn join_as(&mut self, connection: u32, node: NodeDesc, instance: u64) {
        let join = self.join_of(node, instance);
        self.operate(connection, &Operation::Join(Box::new(join)));
    }

    fn join_of(&self, node: NodeDesc, instance: u64) -> Join {
        Join {
            role: "default".to_owned(),
            local_world_size: 2,
            program: self.program.clone(),
            attempt: self.attempt,
            replaces: self.replaces.clone(),
            from: self.says_from.then(|| peer_address(instance)),
            ..Join::new(instance, "run", node, self.settings)
        }
    }

    fn last(&self) -> LastCoordinator {
        LastCoordinator {
            cluster: 7,
            epoch: self.obeyed,
            address: self.reached.clone(),
        }
    }

    /// Reattaches agent `number`, with a message that `change` modifies.
    fn reattach_as(&mut self, connection: u32, number: u32, change: impl FnOnce(&mut Reattach)) {
        let mut reattach = Reattach {
            last: self.last(),
            join: self.join_of(node(number), u64::from(number)),
            holds: None,
            left: None,
            leaves: false,
        };
        change(&mut reattach);
        self.operate(connection, &Operation::Reattach(Box::new(reattach)));
    }

    /// Reattaches agent `number` over a connection, with the round that it holds.
    pub(crate) fn reattach(&mut self, connection: u32, number: u32, holds: Option<HeldRound>) {
        self.reattach_as(connection, number, |reattach| reattach.holds = holds);
    }

    /// Reattaches an agent that has left this round and waits for the next one.
    pub(crate) fn reattach_after(&mut self, number: u32, left: Option<HeldRound>) {
        self.reattach_as(number, number, |reattach| reattach.left = left);
    }

    /// Lets agent `number` leave over a new connection.
    pub(crate) fn leave_again(&mut self, connection: u32, number: u32) {
        self.reattach_as(connection, number, |reattach| reattach.leaves = true);
    }

    /// Lets an agent end the run.
    pub(crate) fn close(&mut self, number: u32) {
        let run = "run".to_owned();
        self.operate(number, &Operation::Close { run });
    }

    /// Ends the stream of a connection cleanly.
    ///
    /// `peer` is the peer address of the connection, if known.
    pub(crate) fn end(&mut self, connection: u32, peer: Option<String>) {
        let id = ConnId(connection);
        self.handle(Input::EndOfStream { id, peer });
        self.lose(connection);
    }

    pub(crate) fn lose(&mut self, number: u32) {
        self.handle(Input::Closed(ConnId(number)));
    }

    /// Lets time pass, and calls the coordinator at its deadlines.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now.mono + time;
        while let Some(at) = self.coordinator.deadline().filter(|at| *at <= end) {
            let step = at.since(self.now.mono);
            self.now = Now {
                mono: self.now.mono + step,
                wall: self.now.wall + step,
            };
            self.handle(Input::Tick);
        }
        let step = end.since(self.now.mono);
        self.now = Now {
            mono: end,
            wall: self.now.wall + step,
        };
    }

    /// Lets time pass, in which these agents send heartbeats.
    pub(crate) fn pass_beating(&mut self, seconds: u64, numbers: &[u32]) {
        for _ in 0..seconds {
            self.pass(Duration::from_secs(1));
            for number in numbers {
                self.operate(*number, &Operation::Heartbeat);
                self.take(*number)
                    .iter()
                    .for_each(|event| assert!(matches!(event, Event::Alive(_)), "{event:?}"));
            }
        }
    }

    pub(crate) fn take(&mut self, number: u32) -> Vec<Event> {
        self.received.remove(&number).unwrap_or_default()
    }

    /// Returns the round, rank and world size that an agent has received.
    pub(crate) fn formed(&mut self, number: u32) -> (u64, u32, u32) {
        let received = self.take(number);
        match &received[..] {
            [
                ..,
                Event::Formed {
                    round,
                    rank,
                    world_size,
                    ..
                },
            ] => (*round, *rank, *world_size),
            other => panic!("agent {number} received {other:?}"),
        }
    }

    pub(crate) fn membership(&mut self, number: u32) -> String {
        match &self.take(number)[..] {
            [Event::Membership { reason, .. }] => reason.clone(),
            other => panic!("agent {number} received {other:?}"),
        }
    }

    /// Reads the state, and its value, as an agent of torchrun.
    pub(crate) fn read(&mut self) -> (RendezvousState, Vec<u8>) {
        let key = STATE.as_bytes();
        let writes = false;
        self.handle(Input::Touching { key, writes });
        let value = self.keys.get(key).cloned().unwrap_or_default();
        let state = codec::from_value(&value).ok().flatten();
        (state.unwrap_or_default(), value)
    }

    /// Writes a state as an agent of torchrun; `true` if its compare-and-set won.
    pub(crate) fn compare_set(&mut self, expected: &[u8], state: &RendezvousState) -> bool {
        let key = STATE.as_bytes();
        let writes = true;
        self.handle(Input::Touching { key, writes });
        let held = self.keys.get(key).cloned().unwrap_or_default();
        let won = held == expected;
        if won {
            self.keys.insert(key.to_vec(), codec::to_value(state));
        }
        let value = self.keys.get(key).cloned();
        let value = value.as_deref();
        self.handle(Input::Stored { key, value });
        won
    }

    /// Applies an action as an agent of torchrun that loses no race.
    pub(crate) fn torchrun(&mut self, node: &NodeDesc, action: Action) {
        let (mut state, token) = self.read();
        apply(&mut state, node, &self.settings, action, self.now.wall);
        assert!(self.compare_set(&token, &state));
    }

    /// Stores a key of a round as an agent of torchrun.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        let key = format!("{STATE}.{key}").into_bytes();
        self.handle(Input::Touching {
            key: &key,
            writes: true,
        });
        self.keys.insert(key.clone(), value.as_bytes().to_vec());
        self.handle(Input::Stored {
            key: &key,
            value: Some(value.as_bytes()),
        });
    }
}
