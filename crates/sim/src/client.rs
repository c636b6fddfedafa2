//! Clients: their requests, and their checks of the answers.

use bytes::Bytes;
use fastrand::Rng;
use rdzv_store_proto::wire::reply::{Reply, ReplyReader, STOP_WAITING, Shape, WAIT_CANCELED};
use rdzv_store_proto::wire::{LARGE_BODY, request};

use crate::history::key::Answer;
use crate::key_operation::{KEYS, KeyOperation};
use crate::ledger::Ledger;
use crate::{Result, broken};

const REGISTER: &[u8] = b"/register";
const COUNTER: &[u8] = b"/counter";
const QUEUE: &[u8] = b"/queue";
const PAIR: [&[u8]; 2] = [b"/pair/one", b"/pair/two"];

/// Number of keys that clients wait for, set and delete.
const AWAITED: u64 = 30;

/// Number of members that complete a barrier.
pub const MEMBERS: i64 = 3;

/// One client, over all of its connections.
#[derive(Debug)]
pub struct Client {
    number: usize,
    pub(crate) state: State,
    reader: Option<ReplyReader>,
    /// Counter for unique values that this client writes.
    serial: u64,
    /// Last seen value of each key whose operations are recorded.
    seen: [Vec<u8>; KEYS],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing; the client will choose an action.
    Idle,
    /// The client has requested the nonce of the preamble.
    Joining,
    /// Pings are on their way: the first unanswered one and the last one.
    Pinging {
        next: u32,
        last: u32,
    },
    /// Many requests for the large value are on their way, each after a ping.
    Gorging {
        next: u32,
        last: u32,
    },
    /// The answer to such a ping has arrived, and the value is next.
    Swallowing {
        next: u32,
        last: u32,
    },
    Reading,
    /// The client tries to advance the register from a version.
    Swapping {
        version: u64,
    },
    Adding,
    Deleting,
    Waiting {
        keys: Vec<Vec<u8>>,
        pops: bool,
    },
    /// The client has cancelled a wait; `answered` if the wait was answered anyway.
    Cancelling {
        answered: bool,
    },
    /// The client requests an entry of the queue.
    Popping,
    /// The client reads both keys of the pair.
    Pairing,
    Fetching,
    InBarrier {
        key: Vec<u8>,
    },
    /// The client has requested a recorded operation on a key.
    KeyOperation(KeyOperation),
}

impl Client {
    /// Creates a client that has not connected yet.
    pub fn new(number: usize) -> Self {
        Self {
            number,
            state: State::Idle,
            reader: None,
            serial: 0,
            seen: [const { Vec::new() }; KEYS],
        }
    }

    /// Returns the first bytes of a new connection.
    pub fn join(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        request::preamble(&mut out, self.nonce());
        self.expect(State::Joining, Shape::Nonce);
        out
    }

    /// Handles the loss of the connection.
    ///
    /// The current operation may have taken effect nevertheless.
    pub fn lost(&mut self, ledger: &mut Ledger) {
        if let State::KeyOperation(asked) = std::mem::replace(&mut self.state, State::Idle) {
            ledger.key_operation(asked, None);
        }
        self.reader = None;
    }

    /// `true` if the client has no current operation.
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// `true` if the client waits and may cancel.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. } | State::InBarrier { .. })
    }

    /// Cancels the wait.
    pub fn cancel(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        request::cancel_wait(&mut out);
        self.expect(State::Cancelling { answered: false }, Shape::Byte);
        out
    }

    /// Chooses the next operation and returns its request.
    pub fn act(&mut self, now: u64, random: &mut Rng) -> Vec<u8> {
        let mut out = Vec::new();
        self.serial += 1;
        let (state, shape) = match random.u8(0..24) {
            0 => {
                let last = random.u32(1..200);
                (0..=last).for_each(|nonce| request::ping(&mut out, nonce));
                (State::Pinging { next: 0, last }, Shape::Nonce)
            }
            1 | 2 => {
                request::get(&mut out, REGISTER);
                (State::Reading, Shape::Bytes)
            }
            3 => {
                request::add(&mut out, COUNTER, 1);
                (State::Adding, Shape::Number)
            }
            4 | 5 => {
                let some = random.usize(1..4);
                let keys = std::iter::repeat_with(|| awaited(random)).take(some);
                let keys: Vec<Vec<u8>> = keys.collect();
                request::wait(&mut out, &keys);
                (State::Waiting { keys, pops: false }, Shape::Byte)
            }
            6 => {
                let keys = vec![QUEUE.to_vec()];
                request::wait(&mut out, &keys);
                (State::Waiting { keys, pops: true }, Shape::Byte)
            }
            7 => {
                request::multi_get(&mut out, &PAIR);
                (State::Pairing, Shape::Values(2))
            }
            8 => {
                request::get(&mut out, b"/large");
                (State::Fetching, Shape::Bytes)
            }
            9 => {
                let key = format!("/barrier/{}", random.u8(0..20)).into_bytes();
                request::barrier(&mut out, &key, MEMBERS);
                (State::InBarrier { key }, Shape::Byte)
            }
            // These requests have no answer.
            10 | 15 => {
                request::set(&mut out, &awaited(random), b"here");
                return out;
            }
            11 => {
                let entry = format!("{} {}", self.number, self.serial);
                request::queue_push(&mut out, QUEUE, entry.as_bytes());
                return out;
            }
            12 => {
                let value = format!("{} {}", self.number, self.serial);
                request::multi_set(&mut out, &PAIR.map(|key| (key, value.as_bytes())));
                return out;
            }
            13 => {
                request::delete_key(&mut out, &awaited(random));
                (State::Deleting, Shape::Number)
            }
            14 => {
                let last = random.u32(1..40);
                for nonce in 0..=last {
                    request::ping(&mut out, nonce);
                    request::get(&mut out, b"/large");
                }
                (State::Gorging { next: 0, last }, Shape::Nonce)
            }
            17.. => {
                let value = self.serial * 100 + self.number as u64;
                let (asked, shape) =
                    KeyOperation::ask(now, &self.seen, value, self.nonce(), random, &mut out);
                (State::KeyOperation(asked), shape)
            }
            _ => {
                let length = random.usize(0..3 * LARGE_BODY);
                request::set(&mut out, b"/large", &vec![self.number as u8; length]);
                return out;
            }
        };
        self.expect(state, shape);
        out
    }

    /// Handles received bytes; returns the next request if one follows.
    pub fn receive(&mut self, now: u64, mut bytes: &[u8], ledger: &mut Ledger) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let Some(reader) = &mut self.reader else {
                return self.violated("INV-S2/INV-S3: unrequested bytes", bytes);
            };
            let reply = reader.feed(&mut bytes);
            match reply {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    ledger.answers += 1;
                    self.reader = None;
                    self.answered(now, reply, ledger, &mut out)?;
                }
                Err(error) => return self.violated(&error.to_string(), bytes),
            }
        }
        Ok(out)
    }

    fn answered(
        &mut self,
        now: u64,
        reply: Reply,
        ledger: &mut Ledger,
        out: &mut Vec<u8>,
    ) -> Result {
        match (std::mem::replace(&mut self.state, State::Idle), reply) {
            (State::Joining, Reply::Nonce(nonce)) if nonce == self.nonce() => {}
            (State::Pinging { next, last }, Reply::Nonce(nonce)) if nonce == next => {
                if next < last {
                    let next = next + 1;
                    self.expect(State::Pinging { next, last }, Shape::Nonce);
                }
            }
            (State::Gorging { next, last }, Reply::Nonce(nonce)) if nonce == next => {
                self.expect(State::Swallowing { next, last }, Shape::Bytes);
            }
            (State::Swallowing { next, last }, Reply::Bytes(value)) => {
                self.look_at_large(&value)?;
                if next < last {
                    let next = next + 1;
                    self.expect(State::Gorging { next, last }, Shape::Nonce);
                }
            }
            (State::Reading, Reply::Bytes(held)) => {
                let version = version(&held);
                let desired = format!("{} {}", version + 1, self.number);
                request::compare_set(out, REGISTER, &held, desired.as_bytes());
                self.expect(State::Swapping { version }, Shape::Bytes);
            }
            (State::Swapping { version }, Reply::Bytes(held)) => {
                // No other client ever writes these bytes, so they show who won.
                if held == format!("{} {}", version + 1, self.number) {
                    ledger.won(version, self.number)?;
                }
            }
            (State::Adding, Reply::Number(sum)) => ledger.added(sum)?,
            (State::Deleting, Reply::Number(0 | 1)) => {}
            (State::Waiting { pops, .. }, Reply::Byte(STOP_WAITING)) => {
                if pops {
                    request::queue_pop(out, QUEUE);
                    self.expect(State::Popping, Shape::Pop);
                }
            }
            (State::InBarrier { .. }, Reply::Byte(STOP_WAITING)) => {}
            (State::Cancelling { answered: false }, Reply::Byte(STOP_WAITING)) => {
                self.expect(State::Cancelling { answered: true }, Shape::Byte);
            }
            (State::Cancelling { .. }, Reply::Byte(WAIT_CANCELED)) => {}
            // Another client may have been faster.
            (State::Popping, Reply::Pop(None)) => {}
            (State::Popping, Reply::Pop(Some(entry))) => {
                let text = String::from_utf8_lossy(&entry);
                let parts = text.split_once(' ');
                let parts = parts.and_then(|(pusher, number)| {
                    Some((pusher.parse().ok()?, number.parse().ok()?))
                });
                let Some((pusher, number)) = parts else {
                    return self.violated("INV-S6: an entry that no client pushed", &entry);
                };
                ledger.took(pusher, number)?;
            }
            (State::Pairing, Reply::Values(values)) => {
                if values[0] != values[1] {
                    return self.violated("INV-S5: half of a multi-set", &values.concat());
                }
            }
            (State::Fetching, Reply::Bytes(value)) => self.look_at_large(&value)?,
            (State::KeyOperation(asked), reply) => {
                let Some(answer) = asked.answer(&reply, self.nonce()) else {
                    let shown = format!("{reply:?}");
                    self.state = State::KeyOperation(asked);
                    let what = "INV-S2/INV-S3: an answer of another kind";
                    return self.violated(what, shown.as_bytes());
                };
                if let Answer::Value(value) = &answer {
                    self.seen[asked.key].clone_from(value);
                }
                ledger.key_operation(asked, Some((now, answer)));
            }
            (state, reply) => {
                let reply = format!("{reply:?}");
                self.state = state;
                let shown = &reply.as_bytes()[..reply.len().min(80)];
                return self.violated("INV-S2/INV-S3: an answer to something else", shown);
            }
        }
        Ok(())
    }

    fn look_at_large(&self, value: &[u8]) -> Result {
        if value != vec![value.first().copied().unwrap_or(0); value.len()] {
            return self.violated("a value mixed of two", &value[..value.len().min(20)]);
        }
        Ok(())
    }

    fn expect(&mut self, state: State, shape: Shape) {
        self.state = state;
        self.reader = Some(ReplyReader::new(
            shape,
            rdzv_store_proto::limits::MAX_REPLY_BYTES,
        ));
    }

    fn nonce(&self) -> u32 {
        0x5EED_0000 + self.number as u32
    }

    fn violated<T>(&self, what: &str, bytes: &[u8]) -> Result<T> {
        broken(format!(
            "client {} while {:?}: {what}: {:?}",
            self.number,
            self.state,
            String::from_utf8_lossy(bytes)
        ))
    }
}

fn awaited(random: &mut Rng) -> Vec<u8> {
    format!("/awaited/{}", random.u64(0..AWAITED)).into_bytes()
}

/// Returns the version in the register (`VERSION CLIENT`); 0 if it is absent.
fn version(held: &Bytes) -> u64 {
    let text = String::from_utf8_lossy(held);
    let version = text.split(' ').next().and_then(|word| word.parse().ok());
    version.unwrap_or(0)
}
