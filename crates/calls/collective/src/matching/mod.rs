//! Assignment of messages to receives, for the messages of one rank. Pure.
//!
//! - A posted receive takes the first message that has arrived from its sender with its tag.
//!   Without a specified sender, the receive takes the first message from any rank. An arriving
//!   message goes to the first matching receive. Both rules preserve the order of the calls, so
//!   messages between the same ranks with the same tag never overtake each other.
//! - A short message is *eager*: its values follow its envelope, as long as at most
//!   [`EAGER_WINDOW`] bytes of a sender wait for a receive. Other messages are *announced*: their
//!   values are sent after a receive was found. The receiver reports every match, so the sender
//!   knows the free part of its window.
//! - At most [`WINDOW`] messages of a sender wait for a receive. Further messages stay with the
//!   sender.
//!
//! A rank therefore keeps at most [`EAGER_WINDOW`] bytes of values and [`WINDOW`] envelopes for
//! each other rank, whatever that rank does. A message beyond these limits is an
//! [`Output::Violation`].

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::call::{self, Call};
use crate::wire::Envelope;

/// Maximum number of bytes of an eager message.
pub(crate) const EAGER: usize = 64 * 1024;

/// Maximum bytes of eager messages from one rank that wait for a receive.
pub(crate) const EAGER_WINDOW: usize = 256 * 1024;

/// Maximum number of messages from one rank that wait for a receive.
pub(crate) const WINDOW: usize = 1024;

/// Sequence number of the call of an operation, a send or a receive.
pub(crate) type Operation = u64;

#[derive(Debug)]
pub(crate) enum Input {
    /// This rank calls a send or a receive.
    Called(Call),
    Arrived(Arrived),
    /// The receiver has matched a message of this rank.
    Matched {
        by: u32,
        number: u64,
    },
    /// Values of an announced message are in the buffer of its receive.
    Received {
        from: u32,
        number: u64,
        bytes: usize,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Action for an operation, with the rank at its other end.
    Act(Operation, u32, Action),
    /// A rank violates the protocol.
    Violation { by: u32, found: String },
}

/// Next action of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send the envelope and, for an eager message, the values.
    Post { envelope: Envelope, eager: bool },
    /// Send the values of an announced message.
    Stream { number: u64 },
    /// Report the match of a message and a receive to the sender.
    Match { number: u64 },
    /// Put these values into the buffer of the receive, and end the receive.
    Deliver { values: Vec<u8> },
    /// End the receive, which has all its values.
    Done,
    /// End the receive, because the message has another length or type.
    Mismatch { envelope: Envelope },
}

#[derive(Debug, Default)]
pub(crate) struct Matching {
    peers: BTreeMap<u32, Peer>,
    /// Receives without a message, by tag, in the order of the calls.
    posted: BTreeMap<u32, VecDeque<Posted>>,
    /// Messages without a receive, by tag, in the order of their arrival.
    arrived: BTreeMap<u32, VecDeque<Arrived>>,
    outputs: VecDeque<Output>,
}

#[derive(Debug, Default)]
struct Peer {
    /// Messages to the peer that wait for its window, in the order of the calls.
    waiting: VecDeque<Sending>,
    /// Messages to the peer that it has not matched, by number.
    unmatched: BTreeMap<u64, Sending>,
    /// Total size in bytes of the eager messages in `unmatched`.
    eager: usize,
    /// Number of the last message to the peer.
    sent: u64,
    /// Number of the last message from the peer.
    arrived: u64,
    /// Number of messages from the peer that no receive has taken.
    kept: usize,
    /// Total size in bytes of the values in these messages.
    kept_bytes: usize,
    /// Announced messages from the peer whose values are arriving, by number.
    incoming: BTreeMap<u64, Incoming>,
}

#[derive(Debug)]
struct Sending {
    call: Call,
    tag: u32,
    /// Length in bytes, if the message was sent as an eager one.
    eager: Option<usize>,
}

#[derive(Debug)]
struct Posted {
    call: Call,
    from: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: u32,
    pub(crate) envelope: Envelope,
    /// Values, if the message is eager.
    pub(crate) values: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy)]
struct Incoming {
    operation: Operation,
    bytes: usize,
    received: usize,
}

impl Matching {
    /// Handles an event. The caller drains the outputs afterwards.
    pub(crate) fn handle(&mut self, input: Input) {
        debug_assert!(self.outputs.is_empty(), "outputs were not drained");
        match input {
            Input::Called(call) => match call.operation {
                call::GroupOperation::Send { to, tag } => {
                    let eager = None;
                    let sending = Sending { call, tag, eager };
                    self.peers.entry(to).or_default().waiting.push_back(sending);
                    self.send_waiting(to);
                }
                call::GroupOperation::Receive { from, tag } => {
                    self.receive(tag, Posted { call, from });
                }
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

    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the receive operation for values of a message, and their offset.
    ///
    /// # Errors
    ///
    /// Returns the reason why the rank may not send these values.
    pub(crate) fn room(
        &self,
        from: u32,
        number: u64,
        bytes: usize,
    ) -> Result<(Operation, usize), String> {
        let peer = self.peers.get(&from);
        let Some(incoming) = peer.and_then(|peer| peer.incoming.get(&number)) else {
            return Err(format!(
                "it sent values of message {number}, which were not requested"
            ));
        };
        let left = incoming.bytes - incoming.received;
        // Pieces without bytes would never end.
        if bytes > left || (bytes == 0 && incoming.bytes > 0) {
            return Err(format!(
                "it sent a piece of {bytes} bytes of message {number}, but only {left} bytes \
                 were left"
            ));
        }
        Ok((incoming.operation, incoming.received))
    }

    /// `true` if the peer has not matched all messages, so it will answer later.
    pub(crate) fn awaits_answer(&self, peer: u32) -> bool {
        let peer = self.peers.get(&peer);
        peer.is_some_and(|peer| !peer.unmatched.is_empty())
    }

    /// Sends the waiting messages that fit into the window of a rank.
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
                format!("it requested message {number}, which does not exist"),
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
            let found = format!(
                "it sent message {} instead of message {due}",
                envelope.number
            );
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
                "it sent message {due} of {bytes} eager bytes, although {} messages with {} bytes \
                 wait for a receive; the limits are {WINDOW} and {EAGER_WINDOW}",
                peer.kept, peer.kept_bytes
            );
            return self.violation(from, found);
        }
        peer.kept += 1;
        peer.kept_bytes += bytes;
        self.arrived.entry(tag).or_default().push_back(arrived);
    }

    /// Handles a message and a receive that match.
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

/// Removes and returns the first fitting item with this tag.
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
