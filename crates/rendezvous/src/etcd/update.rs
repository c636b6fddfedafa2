//! Operations that change a value by what it was: what they make of it, for the stores of both APIs.

use bytes::Bytes;
use rdzv_store::StoreError;
use rdzv_store_proto::number;

/// How much of a value an error shows.
const SHOWN: usize = 32;

/// What becomes of a value.
pub(super) enum Update<T> {
    /// It stays, and the operation's result is this.
    Keep(T),
    /// It becomes these bytes, and the operation's result is that.
    Store(Vec<u8>, T),
}

/// `add`: the sum, as decimal text. An absent value counts as 0.
pub(super) fn added(key: &str, now: Option<&Bytes>, delta: i64) -> Result<Update<i64>, StoreError> {
    let number = match now {
        None => 0,
        Some(text) => number::parse(text).ok_or_else(|| {
            let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
            StoreError::NotANumber {
                key: key.to_owned(),
                value: shown.into_owned(),
            }
        })?,
    };
    let sum = number.wrapping_add(delta);
    Ok(Update::Store(sum.to_string().into_bytes(), sum))
}

/// `compare_set`: what the value is then, with the reference's answer for an absent one.
pub(super) fn compared(now: Option<&Bytes>, expected: &[u8], desired: &[u8]) -> Update<Bytes> {
    match now {
        Some(now) if now != expected => Update::Keep(now.clone()),
        None if !expected.is_empty() => Update::Keep(Bytes::copy_from_slice(expected)),
        _ => Update::Store(desired.to_vec(), Bytes::copy_from_slice(desired)),
    }
}

/// `append`.
pub(super) fn appended(now: Option<&Bytes>, value: &[u8]) -> Update<()> {
    let mut whole = now.map_or_else(Vec::new, |now| now.to_vec());
    whole.extend_from_slice(value);
    Update::Store(whole, ())
}
