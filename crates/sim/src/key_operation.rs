//! Operations on a few keys, each recorded with its answer.

use fastrand::Rng;
use rdzv_store_proto::wire::reply::{CheckReply, Reply, Shape};
use rdzv_store_proto::wire::request;

use crate::history::key::{Answer, Call};

/// Number of keys; the first ones hold numbers, the others texts.
pub const KEYS: usize = 4;
const NUMBERS: usize = 2;

/// Requested operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOperation {
    /// Index of the key.
    pub key: usize,
    /// Operation on the key.
    pub call: Call,
    /// Time of the request.
    pub called: u64,
}

impl KeyOperation {
    /// Requests a random operation, and returns it with the shape of its answer.
    ///
    /// `value` is the value to write, and `seen` has the last seen value of each key. PyTorch's
    /// protocol does not acknowledge a stored value, so a ping follows such a request.
    pub fn ask(
        now: u64,
        seen: &[Vec<u8>; KEYS],
        value: u64,
        nonce: u32,
        random: &mut Rng,
        out: &mut Vec<u8>,
    ) -> (Self, Shape) {
        let key = random.usize(0..KEYS);
        let value = value.to_string().into_bytes();
        let call = match random.u8(0..10) {
            0 | 1 => Call::Get,
            2 => Call::Check,
            3 | 4 => Call::Set(value),
            5 => Call::Delete,
            6 | 7 if key < NUMBERS => Call::Add(random.i64(-3..9)),
            6 | 7 => Call::Append(value),
            _ => Call::CompareSet(seen[key].clone(), value),
        };
        let name = format!("/history/{key}").into_bytes();
        match &call {
            Call::Get => request::get(out, &name),
            Call::Check => request::check(out, &[&name]),
            Call::Set(value) => request::set(out, &name, value),
            Call::Append(value) => request::append(out, &name, value),
            Call::Add(delta) => request::add(out, &name, *delta),
            Call::CompareSet(expected, desired) => {
                request::compare_set(out, &name, expected, desired);
            }
            Call::Delete => request::delete_key(out, &name),
        }
        let shape = match &call {
            Call::Get | Call::CompareSet(..) => Shape::Bytes,
            Call::Check => Shape::Byte,
            Call::Add(_) | Call::Delete => Shape::Number,
            Call::Set(_) | Call::Append(_) => {
                request::ping(out, nonce);
                Shape::Nonce
            }
        };
        let called = now;
        (Self { key, call, called }, shape)
    }

    /// Returns the meaning of a reply; `None` if it belongs to another operation.
    pub fn answer(&self, reply: &Reply, nonce: u32) -> Option<Answer> {
        Some(match (&self.call, reply) {
            (Call::Set(_) | Call::Append(_), Reply::Nonce(number)) if *number == nonce => {
                Answer::Done
            }
            (Call::Check, Reply::Byte(is)) => Answer::Is(*is == CheckReply::Ready as u8),
            (Call::Delete, Reply::Number(count)) => Answer::Is(*count == 1),
            (Call::Add(_), Reply::Number(sum)) => Answer::Number(*sum),
            (Call::Get | Call::CompareSet(..), Reply::Bytes(value)) => {
                Answer::Value(value.to_vec())
            }
            _ => return None,
        })
    }
}
