//! Operations on a few keys, each of which is written down with its answer.

use fastrand::Rng;
use rdzv_store_proto::wire::reply::{CheckReply, Reply, Shape};
use rdzv_store_proto::wire::request;

use crate::history::key::{Answer, Call};

/// The number of keys; the first of them hold numbers, the others texts.
pub const KEYS: usize = 4;
const NUMBERS: usize = 2;

/// A requested operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOperation {
    /// The key.
    pub key: usize,
    /// The operation.
    pub call: Call,
    /// Time of the request.
    pub called: u64,
}

impl KeyOperation {
    /// Asks for something, with this value where one is needed, and what was seen last of each key where something is expected.
    /// PyTorch's protocol does not answer that a value was stored: a ping that follows does.
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

    /// The meaning of a reply; nothing if it is that of another operation.
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
