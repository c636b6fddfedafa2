//! Thread that moves messages.
//!
//! The thread passes events to `matching`, and performs the actions that `matching` returns.
//!
//! | file | content |
//! |---|---|
//! | `wait.rs` | the wait for events |
//! | `peers.rs` | reads and writes of the connections |
//! | `end.rs` | failures, time limits, and leaving, with its wait |

mod end;
mod peers;
mod wait;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rdzv_event::Mailbox;
use rdzv_shm::SharedBuffer;
use rdzv_shm::spin::{SpinBudget, SpinWait};

use super::arriving::Arriving;
use super::leaving::Leaving;
use super::transfer::Transfer;
use super::{Command, Inner, LEFT};
use crate::acceptor::{Acceptor, Member};
use crate::broken::Break;
use crate::call::GroupOperation;
use crate::error::CollectiveError;
use crate::interrupt::Interrupt;
use crate::matching::{self, Action, Input, Matching, Output};
use crate::mesh::{local_ranks, spin_budget};
use crate::shared;
use crate::socket::{Endpoint, Setup};
use crate::wire::Frame;

impl Setup {
    /// Sends this frame to all waiting connections, and accepts no further ones.
    pub(super) fn close(self, member: &Member, frame: &Frame) {
        Acceptor::new(*member, self.listener, false).close(frame);
    }
}

pub(super) struct Driver {
    member: Member,
    endpoints: Vec<Endpoint>,
    acceptor: Acceptor,
    /// Shared buffer that the offer of a ring contains; messages do not use it.
    buffer: Option<SharedBuffer>,
    commands: Mailbox<Command>,
    interrupt: Arc<Interrupt>,
    broken: Arc<OnceLock<Break>>,
    matching: Matching,
    transfers: BTreeMap<matching::Operation, Transfer>,
    deadlines: BTreeSet<(Instant, matching::Operation)>,
    peers: BTreeMap<u32, Peer>,
    /// `true` if the peers were notified that the group is broken.
    ///
    /// After that, nothing is sent or received.
    has_ended: bool,
    spin: SpinBudget,
    /// Number of turns since everything was polled.
    awake_turns: u32,
    /// Spin that was too short, until the end of the following sleep.
    asleep_since: Option<SpinWait>,
}

#[derive(Debug, Default)]
struct Peer {
    leaving: Option<Leaving>,
    arriving: Option<Arriving>,
    /// Reason why the peer receives nothing any more.
    takes_nothing: Option<String>,
    /// Reason why the peer sends nothing any more.
    sends_nothing: Option<String>,
    /// `true` if the peer was connected and ended without a leave frame.
    has_died: bool,
}

impl Peer {
    /// `true` if shared memory carries values to the peer or from it.
    fn has_ring(&self) -> bool {
        let (leaving, arriving) = (self.leaving.as_ref(), self.arriving.as_ref());
        leaving.is_some_and(|one| one.outbound.shares_buffer())
            || arriving.is_some_and(|one| one.inbound.doorbell().is_some())
    }

    /// `true` if values are to be written to the peer's ring, and it has space.
    ///
    /// A spinning caller can repeat this check.
    fn has_space(&mut self) -> bool {
        self.leaving.as_mut().is_some_and(Leaving::has_space)
    }

    /// `true` if the peer's ring has values.
    fn has_data(&mut self) -> bool {
        let arriving = self.arriving.as_mut();
        arriving.is_some_and(|one| one.is_read() && one.inbound.has_more())
    }
}

impl Driver {
    pub(super) fn new(inner: &Inner, setup: Setup, commands: Mailbox<Command>) -> Self {
        let endpoints = setup.endpoints;
        let buffer = (setup.share && local_ranks(&endpoints) > 1).then(shared::own_buffer);
        let (buffer, spin) = (buffer.flatten(), spin_budget(&endpoints));
        Self {
            acceptor: Acceptor::new(inner.member, setup.listener, buffer.is_some()),
            member: inner.member,
            endpoints,
            buffer,
            commands,
            interrupt: Arc::clone(&inner.interrupt),
            broken: Arc::clone(&inner.broken),
            matching: Matching::default(),
            transfers: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            peers: BTreeMap::new(),
            has_ended: false,
            spin,
            awake_turns: 0,
            asleep_since: None,
        }
    }

    /// Moves messages until the rank leaves the group.
    pub(super) fn run(mut self) {
        loop {
            if self.take_commands() {
                return self.leave();
            }
            self.wait();
            self.end_late_transfers();
        }
    }

    /// Executes the commands of other threads; `true` if the rank leaves the group.
    fn take_commands(&mut self) -> bool {
        self.commands.drain();
        loop {
            match self.commands.try_recv() {
                Ok(Command::Begin(transfer)) => self.begin(transfer),
                Ok(Command::Break) => self.fail(Vec::new(), None),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    fn begin(&mut self, transfer: Transfer) {
        if let Some(broken) = self.broken.get() {
            return transfer.values.end(Err(broken.error()));
        }
        let (call, peer) = (transfer.running.call, transfer.peer);
        let operation = call.sequence;
        if let Some(deadline) = transfer.deadline() {
            self.deadlines.insert((deadline, operation));
        }
        self.transfers.insert(operation, transfer);
        if self.interrupt.is_raised() {
            return self.end_interrupted();
        }
        for other in 0..self.member.world_size {
            if other != self.member.rank
                && peer.is_none_or(|peer| peer == other)
                && let Err(error) = self.dial(other, &call)
            {
                return self.fail(vec![(operation, error)], None);
            }
        }
        if self.has_ended {
            return;
        }
        if let GroupOperation::Send { to, .. } = call.operation {
            if let Some(reason) = self.peer(to).takes_nothing.clone() {
                return self.lose(to, &reason, false);
            }
            self.handle(Input::Called(call));
            self.send_to(to);
        } else {
            self.handle(Input::Called(call));
            self.check_senders(operation);
        }
    }

    /// Fails a receive whose sender has died or left.
    ///
    /// A receive from any rank fails if one rank has died, or if all other ranks have left.
    fn check_senders(&mut self, operation: matching::Operation) {
        let Some(transfer) = self.transfers.get(&operation) else {
            return;
        };
        let sender = match transfer.peer {
            Some(peer) => Some(peer),
            // A rank that died may have been the sender, even if it died before the receive.
            None => {
                let gone = self.gone();
                let died = gone.iter().find(|rank| self.peers[rank].has_died);
                let all = gone.len() + 1 == self.endpoints.len();
                died.or_else(|| gone.first().filter(|_| all)).copied()
            }
        };
        if let Some(peer) = sender
            && let Some(reason) = self.peer(peer).sends_nothing.clone()
        {
            let died = self.peer(peer).has_died;
            self.lose(peer, &reason, died);
        }
    }

    /// Passes an event to `matching`, and performs the resulting actions.
    fn handle(&mut self, input: Input) {
        self.matching.handle(input);
        let mut outputs = Vec::new();
        while let Some(output) = self.matching.poll_output() {
            outputs.push(output);
        }
        for output in outputs {
            if self.has_ended {
                return;
            }
            self.apply(output);
        }
    }

    fn apply(&mut self, output: Output) {
        let (operation, peer, action) = match output {
            Output::Act(operation, peer, action) => (operation, peer, action),
            Output::Violation { by, found } => return self.end_not_a_rank(by, &found),
        };
        match action {
            Action::Post { envelope, eager } => {
                let transfer = self.transfers.get(&operation);
                let values = transfer.filter(|_| eager).map(|one| one.values.bytes());
                let to = self.peers.entry(peer).or_default();
                if let Some(leaving) = &mut to.leaving {
                    leaving.post(operation, envelope, values);
                }
            }
            Action::Stream { number } => {
                if let Some(transfer) = self.transfers.get_mut(&operation) {
                    transfer.is_matched = true;
                }
                if let Some(leaving) = &mut self.peer(peer).leaving {
                    leaving.stream(operation, number);
                }
            }
            Action::Match { number } => {
                if let Some(transfer) = self.transfers.get_mut(&operation) {
                    transfer.peer = Some(peer);
                    transfer.is_matched = true;
                }
                if let Some(arriving) = &mut self.peer(peer).arriving {
                    arriving.answer(&Frame::Matched { number });
                    arriving.send_answers();
                }
            }
            Action::Deliver { values } => {
                if let Some(transfer) = self.transfers.get_mut(&operation) {
                    transfer.values.bytes_mut().copy_from_slice(&values);
                }
                self.end(operation, peer);
            }
            Action::Done => self.end(operation, peer),
            Action::Mismatch { envelope } => {
                let Some(transfer) = self.transfers.get(&operation) else {
                    return;
                };
                let (peer, address) = self.named(peer);
                let error = CollectiveError::MessageSize {
                    call: transfer.running.call,
                    rank: self.member.rank,
                    peer,
                    address,
                    elements: envelope.elements,
                    element: envelope.element,
                };
                self.fail(vec![(operation, error)], None);
            }
        }
    }

    /// Completes an operation; `peer` is the rank at the other end.
    fn end(&mut self, operation: matching::Operation, peer: u32) {
        let Some(transfer) = self.transfers.remove(&operation) else {
            return;
        };
        if let Some(deadline) = transfer.deadline() {
            self.deadlines.remove(&(deadline, operation));
        }
        transfer.values.end(Ok(peer));
    }

    fn peer(&mut self, rank: u32) -> &mut Peer {
        self.peers.entry(rank).or_default()
    }

    /// Returns the ranks that send nothing more.
    fn gone(&self) -> Vec<u32> {
        let gone = |(rank, peer): (&u32, &Peer)| peer.sends_nothing.as_ref().map(|_| *rank);
        self.peers.iter().filter_map(gone).collect()
    }
}
