//! Tests against the bytes of PyTorch 2.15 on the wire and in files.
//!
//! The recordings are `crates/store/proto/tests/golden/{tcpstore,filestore}.json`.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod calls;
mod file;
#[path = "../../../proto/tests/golden/recorded.rs"]
mod recorded;
mod replay;
mod tcp;

use bytes::Bytes;
use rdzv_store::StoreError;
use recorded::unhex;
use serde_json::Value;

/// The result of a call, for comparison with the recorded one.
#[derive(Debug)]
enum Outcome {
    Nothing,
    Bool(bool),
    Number(i64),
    Value(Vec<u8>),
    List(Vec<Outcome>),
    Failed(StoreError),
}

impl Outcome {
    fn of<T: Into<Outcome>>(result: Result<T, StoreError>) -> Self {
        result.map_or_else(Self::Failed, Into::into)
    }

    /// `true` if the recording has the same result.
    /// For an error, rdzv's text must contain the recorded kind and keys.
    fn matches(&self, recorded: &Value) -> bool {
        match self {
            Self::Nothing => recorded.is_null(),
            Self::Bool(yes) => recorded == yes,
            Self::Number(number) => recorded == number,
            Self::Value(bytes) => match (&recorded["bytes_hex"], &recorded["bytes_len"]) {
                (Value::String(hex), _) => Some(bytes) == unhex(hex).as_ref(),
                (_, Value::Number(length)) => length.as_u64() == Some(bytes.len() as u64),
                _ => recorded.as_str().is_some_and(|text| {
                    text.as_bytes() == bytes || unhex(text).as_ref() == Some(bytes)
                }),
            },
            Self::List(items) => recorded.as_array().is_some_and(|recorded| {
                items.len() == recorded.len()
                    && items
                        .iter()
                        .zip(recorded)
                        .all(|(one, other)| one.matches(other))
            }),
            Self::Failed(error) => {
                recorded["exception"].is_string() && {
                    let (kind, named) = match recorded["message"].as_str().unwrap() {
                        "stoll" => ("is not a number", ""),
                        "queue is empty" => ("queue is empty", ""),
                        "queue support is not implemented." => {
                            ("queue support is not implemented", "")
                        }
                        "Wait timeout" => ("wait timeout", "absent"),
                        text => match text.split_once(" after ") {
                            Some(("Timeout waiting for key: absent", _)) => {
                                ("wait timeout", "absent")
                            }
                            Some((kind, rest)) => (kind, rest.split_once("ms, ").unwrap().1),
                            None => panic!("an unknown error was recorded: {text}"),
                        },
                    };
                    let text = error.to_string();
                    // Our errors show keys as the caller wrote them, without the slash of the wire.
                    text.contains(kind) && text.contains(&named.replace(" /", " "))
                }
            }
        }
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

impl From<bool> for Outcome {
    fn from(yes: bool) -> Self {
        Self::Bool(yes)
    }
}

impl From<i64> for Outcome {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<u64> for Outcome {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap())
    }
}

impl From<Bytes> for Outcome {
    fn from(value: Bytes) -> Self {
        Self::Value(value.to_vec())
    }
}

impl From<Vec<Bytes>> for Outcome {
    fn from(values: Vec<Bytes>) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

/// Keys, in the recorder's order.
impl From<Vec<String>> for Outcome {
    fn from(mut keys: Vec<String>) -> Self {
        keys.sort();
        let values = keys.into_iter().map(|key| Self::Value(key.into_bytes()));
        Self::List(values.collect())
    }
}
