//! The JSON forms of etcd's v3 API: bytes are base64, 64-bit numbers are text, and what is zero or
//! empty is left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

/// A key or value as etcd writes it.
pub(crate) fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A 64-bit number: text, or a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Int(pub(crate) i64);

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().ok(),
            // Identifiers that do not fit i64 do not occur: etcd's are i64 themselves.
            Value::Number(number) => number.as_i64(),
            _ => None,
        };
        number
            .map(Self)
            .ok_or_else(|| D::Error::custom("a 64-bit number was expected"))
    }
}

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Reads bytes that are base64.
fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
    Ok(bytes.into())
}

/// Comes with every answer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    /// The revision of the whole store.
    pub(crate) revision: Int,
}

/// A key and what is under it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    #[serde(deserialize_with = "from_base64")]
    pub(crate) key: Bytes,
    #[serde(deserialize_with = "from_base64")]
    pub(crate) value: Bytes,
    /// The revision of the last change.
    pub(crate) mod_revision: Int,
}

/// An answer. Each kind of request fills its own part of it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    pub(crate) header: Header,
    /// What a range request has found.
    pub(crate) kvs: Vec<KeyValue>,
    pub(crate) count: Int,
    /// How many keys a delete request has removed.
    pub(crate) deleted: Int,
    /// Whether the conditions of a transaction held, and the answers to its operations.
    pub(crate) succeeded: bool,
    pub(crate) responses: Vec<Response>,
    /// A new lease.
    #[serde(rename = "ID")]
    pub(crate) id: Int,
    /// The time to live of a lease; 0 if there is no such lease.
    #[serde(rename = "TTL")]
    pub(crate) time_to_live: Int,
    /// The answer about a lease that was to be kept alive.
    pub(crate) result: Option<Box<Self>>,
    /// Whether an earlier attempt, whose answer was lost, may have been carried out too.
    #[serde(skip)]
    pub(crate) repeated: bool,
}

impl Answer {
    /// What the read of one key has found.
    pub(crate) fn held(&self) -> Option<KeyValue> {
        self.kvs.first().cloned()
    }

    /// What the reads of a transaction have found, in their order.
    pub(crate) fn all_held(&self) -> Vec<Option<KeyValue>> {
        let ranges = self.responses.iter().map(|found| &found.response_range);
        ranges.map(|found| found.as_ref()?.held()).collect()
    }
}

/// The answer to one operation of a transaction.
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

/// News of one watch.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchAnswer {
    pub(crate) header: Header,
    pub(crate) watch_id: Int,
    pub(crate) created: bool,
    pub(crate) canceled: bool,
    /// If not 0, what was asked for has been compacted away.
    pub(crate) compact_revision: Int,
    pub(crate) events: Vec<Event>,
}

/// A change of a key.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    /// `DELETE`, or left out for a put.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) kv: KeyValue,
}

/// What the server says instead of an answer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) error: Value,
}

/// "Read this key" in a transaction.
pub(crate) fn read(key: &[u8]) -> Value {
    json!({ "request_range": { "key": text(key) } })
}

/// "Is this key there?" in a transaction.
pub(crate) fn count(key: &[u8]) -> Value {
    json!({ "request_range": { "key": text(key), "count_only": true } })
}

/// "Write this key, for as long as the lease lives" in a transaction.
pub(crate) fn write(key: &[u8], value: &[u8], lease: i64) -> Value {
    json!({ "request_put": { "key": text(key), "value": text(value), "lease": Int(lease) } })
}

/// "If this key was last changed at that revision" (0: is absent) in a transaction.
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
