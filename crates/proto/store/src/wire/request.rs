//! Writing requests: what a client sends.
//!
//! Keys are wire keys: the `/` that PyTorch puts in front of every key of its API is part of them.
//! The `_head` functions write everything but the last value, for callers that send a large value
//! from where it lies.

use super::opcode::{Opcode, VALIDATE_MAGIC};

/// `VALIDATE` and `PING`: the first bytes of a connection. The answer is the nonce.
pub fn preamble(out: &mut Vec<u8>, nonce: u32) {
    out.push(Opcode::Validate.byte());
    out.extend_from_slice(&VALIDATE_MAGIC.to_le_bytes());
    ping(out, nonce);
}

/// `PING`, answered with the nonce.
pub fn ping(out: &mut Vec<u8>, nonce: u32) {
    out.push(Opcode::Ping.byte());
    out.extend_from_slice(&nonce.to_le_bytes());
}

/// `SET`, not answered.
pub fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    set_head(out, key, value.len());
    out.extend_from_slice(value);
}

/// [`set`] without the bytes of the value.
pub fn set_head(out: &mut Vec<u8>, key: &[u8], value_length: usize) {
    keyed(out, Opcode::Set, key);
    length(out, value_length);
}

/// `COMPARE_SET`, answered with bytes.
pub fn compare_set(out: &mut Vec<u8>, key: &[u8], expected: &[u8], desired: &[u8]) {
    compare_set_head(out, key, expected, desired.len());
    out.extend_from_slice(desired);
}

/// [`compare_set`] without the bytes of the desired value.
pub fn compare_set_head(out: &mut Vec<u8>, key: &[u8], expected: &[u8], desired_length: usize) {
    keyed(out, Opcode::CompareSet, key);
    bytes(out, expected);
    length(out, desired_length);
}

/// `GET`, answered with bytes (empty for an absent key).
pub fn get(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::Get, key);
}

/// `ADD`, answered with the sum.
pub fn add(out: &mut Vec<u8>, key: &[u8], delta: i64) {
    keyed(out, Opcode::Add, key);
    out.extend_from_slice(&delta.to_le_bytes());
}

/// `CHECK`, answered with a [`CheckReply`](super::reply::CheckReply).
pub fn check<K: AsRef<[u8]>>(out: &mut Vec<u8>, keys: &[K]) {
    listed(out, Opcode::Check, keys);
}

/// `WAIT`, answered with [`STOP_WAITING`](super::reply::STOP_WAITING) in due time.
pub fn wait<K: AsRef<[u8]>>(out: &mut Vec<u8>, keys: &[K]) {
    listed(out, Opcode::Wait, keys);
}

/// `CANCEL_WAIT`, answered with [`WAIT_CANCELED`](super::reply::WAIT_CANCELED).
pub fn cancel_wait(out: &mut Vec<u8>) {
    out.push(Opcode::CancelWait.byte());
}

/// `GETNUMKEYS`, answered with a number.
pub fn get_num_keys(out: &mut Vec<u8>) {
    out.push(Opcode::GetNumKeys.byte());
}

/// `DELETE_KEY`, answered with 0 or 1.
pub fn delete_key(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::DeleteKey, key);
}

/// `APPEND`, not answered.
pub fn append(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    append_head(out, key, value.len());
    out.extend_from_slice(value);
}

/// [`append`] without the bytes of the value.
pub fn append_head(out: &mut Vec<u8>, key: &[u8], value_length: usize) {
    keyed(out, Opcode::Append, key);
    length(out, value_length);
}

/// `MULTI_GET`, answered with the values back to back.
pub fn multi_get<K: AsRef<[u8]>>(out: &mut Vec<u8>, keys: &[K]) {
    listed(out, Opcode::MultiGet, keys);
}

/// `MULTI_SET`, not answered.
pub fn multi_set<K: AsRef<[u8]>, V: AsRef<[u8]>>(out: &mut Vec<u8>, pairs: &[(K, V)]) {
    out.push(Opcode::MultiSet.byte());
    length(out, pairs.len());
    for (key, value) in pairs {
        bytes(out, key.as_ref());
        bytes(out, value.as_ref());
    }
}

/// `QUEUE_PUSH`, not answered.
pub fn queue_push(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    queue_push_head(out, key, value.len());
    out.extend_from_slice(value);
}

/// [`queue_push`] without the bytes of the value.
pub fn queue_push_head(out: &mut Vec<u8>, key: &[u8], value_length: usize) {
    keyed(out, Opcode::QueuePush, key);
    length(out, value_length);
}

/// `QUEUE_POP`, answered with the length before the pop and, if it was not 0, the value.
pub fn queue_pop(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::QueuePop, key);
}

/// `QUEUE_LEN`, answered with a number.
pub fn queue_len(out: &mut Vec<u8>, key: &[u8]) {
    keyed(out, Opcode::QueueLen, key);
}

/// `LIST_KEYS`, answered with a count and the keys.
pub fn list_keys(out: &mut Vec<u8>) {
    out.push(Opcode::ListKeys.byte());
}

/// `BARRIER`, answered with [`STOP_WAITING`](super::reply::STOP_WAITING) in due time.
pub fn barrier(out: &mut Vec<u8>, key: &[u8], world_size: i64) {
    keyed(out, Opcode::Barrier, key);
    out.extend_from_slice(&world_size.to_le_bytes());
}

/// A request of an extension, whose opcode is one of
/// [`EXTENSION_OPCODES`](super::opcode::EXTENSION_OPCODES).
pub fn extension(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    out.push(opcode);
    bytes(out, payload);
}

fn keyed(out: &mut Vec<u8>, opcode: Opcode, key: &[u8]) {
    out.push(opcode.byte());
    bytes(out, key);
}

fn listed<K: AsRef<[u8]>>(out: &mut Vec<u8>, opcode: Opcode, keys: &[K]) {
    out.push(opcode.byte());
    length(out, keys.len());
    for key in keys {
        bytes(out, key.as_ref());
    }
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    length(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&(length as u64).to_le_bytes());
}
