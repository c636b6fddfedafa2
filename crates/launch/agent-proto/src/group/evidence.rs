//! The evidence of a failure besides its cause.
//!
//! It consists of the node, the exit of the process and the files that the process left.

use std::path::PathBuf;

use rdzv_core::escape::{escape, escape_lines};
use rdzv_core::rank::{GroupRank, LocalRank, Rank};
use rdzv_core::time::Wall;
use serde_json::Value;

use super::cause::Cause;
use super::exit::Exit;

/// Evidence of one failure. Facts that may be unknown are optional.
///
/// For a lost node, only the node and the time are known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// Full name of the node on which the failure happened.
    pub host: String,
    /// Rank of that node's agent among the agents.
    pub group_rank: Option<GroupRank>,
    /// Role of the worker.
    pub role: String,
    /// Global rank of the worker.
    pub rank: Option<Rank>,
    /// Local rank of the worker.
    pub local_rank: Option<LocalRank>,
    /// Process id of the worker.
    pub pid: Option<u32>,
    /// Exit code of the worker, or the signal that killed it.
    pub exit: Option<Exit>,
    /// Time at which the worker was started.
    pub started: Option<Wall>,
    /// Time at which the agent saw the failure, by its node's clock.
    pub seen: Option<Wall>,
    /// `true` if the agent stopped the worker for no fault of this worker.
    pub stopped_by_agent: bool,
    /// Cause for which the agent killed the worker.
    /// `None` unless the worker itself was at fault.
    pub kill_cause: Option<Cause>,
    /// Counter that shows that the kernel killed processes for lack of memory.
    /// The counter rose between the start of the attempt and the exit of the worker.
    pub out_of_memory: Option<String>,
    /// Error file of the worker, if it left one.
    pub error_file: Option<ErrorFile>,
    /// Traceback from the error file, or from the end of the worker's stderr.
    pub traceback: Option<String>,
    /// Last lines of the worker's stderr, oldest first.
    /// Empty if the agent has none.
    pub stderr_tail: Vec<String>,
}

impl Evidence {
    /// Returns the time of the failure.
    /// This is the time in the error file, or otherwise the time at which the agent saw the
    /// failure.
    pub fn time(&self) -> Wall {
        let recorded = self.recorded_seconds();
        recorded.map_or(self.seen.unwrap_or_default(), |seconds| {
            Wall::from_unix_micros(seconds.saturating_mul(1_000_000))
        })
    }

    /// Returns the time of the failure that the worker recorded, in whole seconds.
    pub fn recorded_seconds(&self) -> Option<i64> {
        self.error_file.as_ref()?.recorded_seconds()
    }
}

/// The file that a worker left at `TORCHELASTIC_ERROR_FILE`.
///
/// A valid file has one of two forms of JSON.
///
/// ```json
/// {"message": {"message": "ValueError: boom",
///              "extraInfo": {"py_callstack": "…", "timestamp": "1790000000"}}}
/// {"message": "boom", "timestamp": "1790000000"}
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFile {
    /// Path of the file.
    pub path: PathBuf,
    /// JSON of the file, or the reason why it has neither of the two forms.
    pub content: Result<Value, String>,
}

impl ErrorFile {
    /// Parses the text of an error file.
    pub fn parse(path: PathBuf, text: &str) -> Self {
        Self {
            path,
            content: parse(text),
        }
    }

    fn json(&self) -> Option<&Value> {
        self.content.as_ref().ok()
    }

    /// Returns the class and text of the exception that the worker recorded.
    pub fn message(&self) -> Option<&str> {
        match self.json()?.get("message")? {
            Value::String(text) => Some(text),
            message => message.get("message")?.as_str(),
        }
    }

    /// Returns the traceback that the worker recorded.
    /// Returns the message if the worker recorded no traceback.
    pub fn traceback(&self) -> Option<&str> {
        match self.json()?.get("message")? {
            Value::String(text) => Some(text),
            message => message
                .pointer("/extraInfo/py_callstack")
                .or_else(|| message.get("message"))?
                .as_str(),
        }
    }

    /// Returns the time of the failure that the worker recorded.
    /// The unit is whole seconds since the Unix epoch.
    pub fn recorded_seconds(&self) -> Option<i64> {
        let content = self.json()?;
        let timestamp = match content.get("message")? {
            Value::Object(message) => message.get("extraInfo")?.get("timestamp")?,
            _ => content.get("timestamp")?,
        };
        match timestamp {
            Value::String(text) => text.trim().parse().ok(),
            Value::Number(number) => number.as_i64().or_else(|| {
                // Drops the fraction.
                let seconds = number.as_f64()?;
                #[expect(clippy::cast_possible_truncation, reason = "it is small enough")]
                (seconds.abs() < 1e15).then_some(seconds as i64)
            }),
            _ => None,
        }
    }
}

fn parse(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    let value: Value =
        serde_json::from_str(text).map_err(|error| format!("is not valid JSON: {error}"))?;
    match value.get("message") {
        Some(Value::String(_) | Value::Object(_)) => Ok(escaped(value)),
        _ => Err("has no \"message\" that is a string or an object".to_owned()),
    }
}

/// Escapes every text in a value.
/// The worker may have copied these texts from anywhere.
fn escaped(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(escape_lines(&text)),
        Value::Array(values) => values.into_iter().map(escaped).collect(),
        Value::Object(entries) => entries
            .into_iter()
            .map(|(key, value)| (escape(&key), escaped(value)))
            .collect(),
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_texts_or_numbers_with_or_without_a_fraction() {
        let at = |text: &str| ErrorFile::parse("error.json".into(), text).recorded_seconds();
        assert_eq!(
            at(r#"{"message": "m", "timestamp": "1700000000"}"#),
            Some(1_700_000_000)
        );
        assert_eq!(at(r#"{"message": "m", "timestamp": 17.9}"#), Some(17));
        assert_eq!(at(r#"{"message": "m"}"#), None);
        assert_eq!(
            at(r#"{"message": {"extraInfo": {"timestamp": 12}}, "timestamp": 1}"#),
            Some(12)
        );
        assert_eq!(
            at(r#"{"message": {"extraInfo": {"timestamp": "x"}}}"#),
            None
        );
    }
}
