//! JSON forms of etcd's v3 API.
//!
//! Bytes are base64, 64-bit numbers are strings, and zero or empty values are omitted.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

/// Encodes a key or value as etcd does.
pub(crate) fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// 64-bit number, written as a string and read from a string or a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Int(pub(crate) i64);

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().ok(),
            // All identifiers fit i64, because they are i64 in etcd.
            Value::Number(number) => number.as_i64(),
            _ => None,
        };
        number
            .map(Self)
            .ok_or_else(|| D::Error::custom("expected a 64-bit number"))
    }
}

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
    Ok(bytes.into())
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    /// Revision of the whole store.
    pub(crate) revision: Int,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    #[serde(deserialize_with = "from_base64")]
    pub(crate) key: Bytes,
    #[serde(deserialize_with = "from_base64")]
    pub(crate) value: Bytes,
    /// Revision of the last change.
    pub(crate) mod_revision: Int,
}

/// Answer of any kind of request. Each kind fills some of the fields.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    pub(crate) header: Header,
    /// Result of a range request.
    pub(crate) kvs: Vec<KeyValue>,
    pub(crate) count: Int,
    /// Number of keys that a delete request has removed.
    pub(crate) deleted: Int,
    /// `true` if the conditions of a transaction held.
    pub(crate) succeeded: bool,
    pub(crate) responses: Vec<Response>,
    /// Identifier of a new lease.
    #[serde(rename = "ID")]
    pub(crate) id: Int,
    /// Time to live of a lease; 0 if the lease does not exist.
    #[serde(rename = "TTL")]
    pub(crate) time_to_live: Int,
    /// Answer to a renewal of a lease.
    pub(crate) result: Option<Box<Self>>,
    /// `true` if the server may also have executed an earlier attempt.
    #[serde(skip)]
    pub(crate) repeated: bool,
}

impl Answer {
    /// Returns the result of the read of one key.
    pub(crate) fn held(&self) -> Option<KeyValue> {
        self.kvs.first().cloned()
    }

    /// Returns the results of the reads of a transaction, in order.
    pub(crate) fn all_held(&self) -> Vec<Option<KeyValue>> {
        let ranges = self.responses.iter().map(|found| &found.response_range);
        ranges.map(|found| found.as_ref()?.held()).collect()
    }
}

/// Answer to one operation of a transaction.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Response {
    pub(crate) response_range: Option<Answer>,
}

/// One line of the answer to a watch.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchLine {
    pub(crate) result: Option<WatchAnswer>,
    pub(crate) error: Option<Value>,
}

/// Events of one watch.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchAnswer {
    pub(crate) header: Header,
    pub(crate) watch_id: Int,
    pub(crate) created: bool,
    pub(crate) canceled: bool,
    /// Oldest available revision if the requested one was compacted; otherwise 0.
    pub(crate) compact_revision: Int,
    pub(crate) events: Vec<Event>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    /// `DELETE`, or empty for a put.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) kv: KeyValue,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) error: Value,
}

/// Returns the transaction's operation that reads `key`.
pub(crate) fn read(key: &[u8]) -> Value {
    json!({ "request_range": { "key": text(key) } })
}

/// Returns the transaction's operation that checks whether `key` exists.
pub(crate) fn count(key: &[u8]) -> Value {
    json!({ "request_range": { "key": text(key), "count_only": true } })
}

/// Returns the transaction's operation that writes `key` with a lease.
pub(crate) fn write(key: &[u8], value: &[u8], lease: i64) -> Value {
    json!({ "request_put": { "key": text(key), "value": text(value), "lease": Int(lease) } })
}

/// Returns the condition that `key` was last changed at `revision`.
///
/// Revision 0 means that `key` is absent.
pub(crate) fn unchanged_since(key: &[u8], revision: i64) -> Value {
    json!({ "key": text(key), "target": "MOD", "result": "EQUAL", "mod_revision": Int(revision) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_text_or_numbers_or_left_out() {
        let answer: Answer = serde_json::from_str(
            r#"{"header":{"revision":"9223372036854775807","raft_term":"2"},"succeeded":true,
                "responses":[{"response_range":{"kvs":[{"key":"Zm9v","mod_revision":7}],"count":"1"}}]}"#,
        )
        .unwrap();
        assert_eq!(answer.header.revision.0, i64::MAX);
        let range = answer.responses[0].response_range.as_ref().unwrap();
        assert_eq!(range.kvs[0].key, "foo");
        assert_eq!(range.kvs[0].value, "");
        assert_eq!(range.kvs[0].mod_revision, Int(7));
        let empty: Answer = serde_json::from_str("{}").unwrap();
        assert!(!empty.succeeded && empty.responses.is_empty());
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in [
            r#"{"header":{"revision":"x"}}"#,
            r#"{"header":{"revision":1.5}}"#,
            r#"{"kvs":[{"key":"?"}]}"#,
        ] {
            assert!(serde_json::from_str::<Answer>(bad).is_err(), "{bad}");
        }
    }
}
