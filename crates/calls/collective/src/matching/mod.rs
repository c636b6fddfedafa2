//! Which message goes to which receive: the part of one rank, for its messages to and from all
//! others. Pure.
//!
//! - A receive that is posted takes the first message that has come with its tag from its sender
//!   (from any rank, if it has none); a message that comes goes to the first receive that was
//!   posted for it. Both keep the order of the calls, so two messages between the same ranks with
//!   the same tag never overtake one another.
//! - A short message is *eager*: its values go with its envelope, as long as at most
//!   [`EAGER_WINDOW`] bytes of a sender wait for a receive. Others are *announced*: their values
//!   come once a receive was found. The receiver reports every match, so the sender knows how much
//!   of its window is free.
//! - At most [`WINDOW`] messages of a sender wait for a receive. The next ones stay with the
//!   sender.
//!
//! A rank therefore keeps at most [`EAGER_WINDOW`] bytes of values and [`WINDOW`] envelopes for
//! each other rank, whatever that rank does: more is a [`Output::Violation`].

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::call::{self, Call};
use crate::wire::Envelope;

/// The most bytes of an eager message.
pub(crate) const EAGER: usize = 64 * 1024;

/// The most bytes of eager messages of one rank for which no receive is posted.
pub(crate) const EAGER_WINDOW: usize = 256 * 1024;

/// The most messages of one rank for which no receive is posted.
pub(crate) const WINDOW: usize = 1024;

/// Names an operation of this rank, a send or a receive: the sequence number of its call.
pub(crate) type Operation = u64;

/// Something happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// This rank sends or receives a message.
    Called(Call),
    /// A message came.
    Arrived(Arrived),
    /// The receiver has matched a message of this rank.
    Matched { by: u32, number: u64 },
    /// Values of an announced message are in the buffer of its receive.
    Received {
        from: u32,
        number: u64,
        bytes: usize,
    },
}

/// Something to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// An action for an operation, with the rank at the other end of it.
    Act(Operation, u32, Action),
    /// A rank does not keep the rules.
    Violation { by: u32, found: String },
}

/// The part of an operation that is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send the envelope and, if it is eager, the values.
    Post { envelope: Envelope, eager: bool },
    /// Send the values of a message that was announced.
    Stream { number: u64 },
    /// A message and a receive were matched: report it to the sender.
    Match { number: u64 },
    /// The receive has all its values once these are in its buffer.
    Deliver { values: Vec<u8> },
    /// The receive has all its values.
    Done,
    /// The message is not as the receive expects it.
    Mismatch { envelope: Envelope },
}

/// The state of one rank.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    peers: BTreeMap<u32, Peer>,
    /// Receives without a message, by tag, in the order of the calls.
    posted: BTreeMap<u32, VecDeque<Posted>>,
    /// Messages without a receive, by tag, in the order in which they came.
    arrived: BTreeMap<u32, VecDeque<Arrived>>,
    outputs: VecDeque<Output>,
}

#[derive(Debug, Default)]
struct Peer {
    /// Messages to it that wait for its window, first call first.
    waiting: VecDeque<Sending>,
    /// Messages to it that it has not matched, by number.
    unmatched: BTreeMap<u64, Sending>,
    /// Of these, the bytes of the eager ones.
    eager: usize,
    /// Number of the last message to it.
    sent: u64,
    /// Number of the last message from it.
    arrived: u64,
    /// Number of its messages without a receive.
    kept: usize,
    /// The bytes of values of these.
    kept_bytes: usize,
    /// Announced messages of it whose values come, by number.
    incoming: BTreeMap<u64, Incoming>,
}

#[derive(Debug)]
struct Sending {
    call: Call,
    tag: u32,
    /// Bytes, if it went as an eager message.
    eager: Option<usize>,
}

#[derive(Debug)]
struct Posted {
    call: Call,
    from: Option<u32>,
}

/// A message that came.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: u32,
    pub(crate) envelope: Envelope,
    /// The values, if the message is eager.
    pub(crate) values: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy)]
struct Incoming {
    operation: Operation,
    bytes: usize,
    received: usize,
}

impl Matching {
    /// Takes in what happened. Outputs are drained after it.
    pub(crate) fn handle(&mut self, input: Input) {
        debug_assert!(self.outputs.is_empty(), "outputs were not drained");
        match input {
            Input::Called(call) => match call.operation {
                call::Operation::Send { to, tag } => {
                    let eager = None;
                    let sending = Sending { call, tag, eager };
                    self.peers.entry(to).or_default().waiting.push_back(sending);
                    self.send_waiting(to);
                }
                call::Operation::Receive { from, tag } => self.receive(tag, Posted { call, from }),
                // No other operation has messages.
                _ => {}
            },
            Input::Arrived(arrived) => self.arrive(arrived),
            Input::Matched { by, number } => self.matched(by, number),
            Input::Received {
                from,
                number,
                bytes,
            } => self.received(from, number, bytes),
        }
    }

    /// The next thing to do.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Where values of an announced message go: the receive, and the offset in its buffer.
    ///
    /// # Errors
    ///
    /// The rank has no such values to send; says why.
    pub(crate) fn room(
        &self,
        from: u32,
        number: u64,
        bytes: usize,
    ) -> Result<(Operation, usize), String> {
        let peer = self.peers.get(&from);
        let Some(incoming) = peer.and_then(|peer| peer.incoming.get(&number)) else {
            return Err(format!(
                "values of message {number}, which were not asked for"
            ));
        };
        let left = incoming.bytes - incoming.received;
        // A piece of nothing would never come to an end.
        if bytes > left || (bytes == 0 && incoming.bytes > 0) {
            return Err(format!(
                "a piece of {bytes} bytes of message {number}, of which {left} are missing"
            ));
        }
        Ok((incoming.operation, incoming.received))
    }

    /// `true` if messages to a rank went that it has not matched yet: an answer of it is on its way
    /// some time.
    pub(crate) fn awaits_answer(&self, peer: u32) -> bool {
        let peer = self.peers.get(&peer);
        peer.is_some_and(|peer| !peer.unmatched.is_empty())
    }

    /// Sends what the window of a rank has room for.
    fn send_waiting(&mut self, to: u32) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        while peer.unmatched.len() < WINDOW
            && let Some(mut sending) = peer.waiting.pop_front()
        {
            peer.sent += 1;
            let envelope = Envelope {
                tag: sending.tag,
                element: sending.call.element,
                elements: sending.call.elements,
                number: peer.sent,
            };
            sending.eager = envelope
                .bytes()
                .filter(|bytes| *bytes <= EAGER && peer.eager + bytes <= EAGER_WINDOW);
            peer.eager += sending.eager.unwrap_or(0);
            let eager = sending.eager.is_some();
            let post = Action::Post { envelope, eager };
            self.outputs
                .push_back(Output::Act(sending.call.sequence, to, post));
            peer.unmatched.insert(peer.sent, sending);
        }
    }

    fn matched(&mut self, by: u32, number: u64) {
        let peer = self.peers.entry(by).or_default();
        let Some(sending) = peer.unmatched.remove(&number) else {
            return self.violation(
                by,
                format!("a match of message {number}, which it does not have"),
            );
        };
        match sending.eager {
            Some(bytes) => peer.eager -= bytes,
            None => self.act(sending.call.sequence, by, Action::Stream { number }),
        }
        self.send_waiting(by);
    }

    fn receive(&mut self, tag: u32, posted: Posted) {
        let fits = |one: &Arrived| posted.from.is_none_or(|from| from == one.from);
        match take_first(&mut self.arrived, tag, fits) {
            Some(arrived) => {
                let peer = self.peers.entry(arrived.from).or_default();
                peer.kept -= 1;
                peer.kept_bytes -= arrived.values.as_ref().map_or(0, Vec::len);
                self.pair(&posted, arrived);
            }
            None => self.posted.entry(tag).or_default().push_back(posted),
        }
    }

    fn arrive(&mut self, arrived: Arrived) {
        let (from, envelope) = (arrived.from, arrived.envelope);
        let peer = self.peers.entry(from).or_default();
        peer.arrived += 1;
        let due = peer.arrived;
        if envelope.number != due {
            let found = format!("message {} where message {due} is due", envelope.number);
            return self.violation(from, found);
        }
        let bytes = arrived.values.as_ref().map_or(0, Vec::len);
        let tag = envelope.tag;
        let fits = |one: &Posted| one.from.is_none_or(|rank| rank == from);
        if let Some(posted) = take_first(&mut self.posted, tag, fits) {
            return self.pair(&posted, arrived);
        }
        if peer.kept == WINDOW || peer.kept_bytes + bytes > EAGER_WINDOW {
            let found = format!(
                "message {due} of {bytes} eager bytes, when {} with {} bytes wait for a receive; the limits are {WINDOW} \
                 and {EAGER_WINDOW}",
                peer.kept, peer.kept_bytes
            );
            return self.violation(from, found);
        }
        peer.kept += 1;
        peer.kept_bytes += bytes;
        self.arrived.entry(tag).or_default().push_back(arrived);
    }

    /// A message and a receive have found one another.
    fn pair(&mut self, posted: &Posted, arrived: Arrived) {
        let (from, envelope) = (arrived.from, arrived.envelope);
        let (operation, call) = (posted.call.sequence, &posted.call);
        if (envelope.element, envelope.elements) != (call.element, call.elements) {
            return self.act(operation, from, Action::Mismatch { envelope });
        }
        let number = envelope.number;
        self.act(operation, from, Action::Match { number });
        match arrived.values {
            Some(values) => self.act(operation, from, Action::Deliver { values }),
            None => {
                let incoming = Incoming {
                    operation,
                    // The receive has a buffer of this length.
                    bytes: envelope.bytes().unwrap_or(usize::MAX),
                    received: 0,
                };
                let peer = self.peers.entry(from).or_default();
                peer.incoming.insert(number, incoming);
            }
        }
    }

    fn received(&mut self, from: u32, number: u64, bytes: usize) {
        let peer = self.peers.entry(from).or_default();
        let Some(incoming) = peer.incoming.get_mut(&number) else {
            return;
        };
        incoming.received += bytes;
        if incoming.received >= incoming.bytes {
            let operation = incoming.operation;
            peer.incoming.remove(&number);
            self.act(operation, from, Action::Done);
        }
    }

    fn act(&mut self, operation: Operation, peer: u32, action: Action) {
        self.outputs.push_back(Output::Act(operation, peer, action));
    }

    fn violation(&mut self, by: u32, found: String) {
        self.outputs.push_back(Output::Violation { by, found });
    }
}

/// Takes the first one with a tag that fits.
fn take_first<T>(
    lists: &mut BTreeMap<u32, VecDeque<T>>,
    tag: u32,
    fits: impl Fn(&T) -> bool,
) -> Option<T> {
    let list = lists.get_mut(&tag)?;
    let found = list.iter().position(fits);
    let found = found.and_then(|index| list.remove(index));
    if list.is_empty() {
        lists.remove(&tag);
    }
    found
}
