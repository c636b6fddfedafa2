//! Valid and invalid requests of the c10d protocol as bytes.

const MAGIC: u32 = 0x3C85_F7CE;

/// Encodes a length or a count alone.
pub fn length(length: u64) -> Vec<u8> {
    length.to_le_bytes().to_vec()
}

/// Encodes bytes with their length in front.
pub fn bytes(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&length(bytes.len() as u64)[..], bytes].concat()
}

/// Encodes `VALIDATE`, the first request of every connection.
pub fn validate() -> Vec<u8> {
    [&[0], &MAGIC.to_le_bytes()[..]].concat()
}

/// Encodes `PING`, answered with the nonce.
pub fn ping(nonce: u32) -> Vec<u8> {
    [&[0x0d], &nonce.to_le_bytes()[..]].concat()
}

fn of_key(opcode: u8, key: impl AsRef<[u8]>) -> Vec<u8> {
    [vec![opcode], bytes(key)].concat()
}

fn of_pair(opcode: u8, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Vec<u8> {
    [of_key(opcode, key), bytes(value)].concat()
}

fn of_keys(opcode: u8, keys: impl ExactSizeIterator<Item = String>) -> Vec<u8> {
    let mut request = vec![opcode];
    request.extend(length(keys.len() as u64));
    keys.for_each(|key| request.extend(bytes(key)));
    request
}

/// Encodes `SET`, which the server does not answer.
pub fn set(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Vec<u8> {
    of_pair(0x01, key, value)
}

/// Encodes `SET` without the bytes of its value.
pub fn set_head(key: &str, declared: u64) -> Vec<u8> {
    [of_key(0x01, key), length(declared)].concat()
}

/// Encodes `COMPARE_SET`, answered with bytes.
pub fn compare_set(key: &str, expected: impl AsRef<[u8]>, desired: impl AsRef<[u8]>) -> Vec<u8> {
    [of_pair(0x02, key, expected), bytes(desired)].concat()
}

/// Encodes `GET`, answered with bytes.
pub fn get(key: impl AsRef<[u8]>) -> Vec<u8> {
    of_key(0x03, key)
}

/// Encodes `ADD`, answered with eight bytes.
pub fn add(key: &str, delta: i64) -> Vec<u8> {
    [of_key(0x04, key), delta.to_le_bytes().to_vec()].concat()
}

/// Encodes `CHECK`, answered with a byte.
pub fn check(keys: impl ExactSizeIterator<Item = String>) -> Vec<u8> {
    of_keys(0x05, keys)
}

/// Encodes `WAIT`, answered with a byte once the keys exist.
pub fn wait(keys: impl ExactSizeIterator<Item = String>) -> Vec<u8> {
    of_keys(0x06, keys)
}

/// `GETNUMKEYS`, answered with eight bytes.
pub const NUM_KEYS: &[u8] = &[0x07];

/// Encodes `DELETE_KEY`, answered with eight bytes.
pub fn delete(key: &str) -> Vec<u8> {
    of_key(0x08, key)
}

/// Encodes `APPEND`, not answered.
pub fn append(key: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    of_pair(0x09, key, value)
}

/// Encodes `MULTI_GET`, answered with values.
pub fn multi_get(keys: impl ExactSizeIterator<Item = String>) -> Vec<u8> {
    of_keys(0x0a, keys)
}

/// Encodes `MULTI_SET`, not answered.
pub fn multi_set(keys: impl ExactSizeIterator<Item = String>, value: &[u8]) -> Vec<u8> {
    let mut request = [vec![0x0b], length(keys.len() as u64)].concat();
    keys.for_each(|key| request.extend([bytes(key), bytes(value)].concat()));
    request
}

/// `CANCEL_WAIT`, answered with a byte.
pub const CANCEL_WAIT: &[u8] = &[0x0c];

/// Encodes `QUEUE_PUSH`, not answered.
pub fn push(key: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    of_pair(0x0e, key, value)
}

/// Encodes `QUEUE_POP`, answered with a number and bytes.
pub fn pop(key: &str) -> Vec<u8> {
    of_key(0x0f, key)
}

/// `LIST_KEYS`, answered with all keys.
pub const LIST_KEYS: &[u8] = &[0x11];

/// Encodes `BARRIER`, answered with a byte once all members have arrived.
pub fn barrier(key: &str, world_size: i64) -> Vec<u8> {
    [of_key(0x12, key), world_size.to_le_bytes().to_vec()].concat()
}
