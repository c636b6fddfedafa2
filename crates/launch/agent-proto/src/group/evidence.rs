//! The evidence of a failure besides its cause: the node, the end of the process and the files that
//! it left.

use std::path::PathBuf;

use rdzv_core::escape::{escape, escape_lines};
use rdzv_core::rank::{GroupRank, LocalRank, Rank};
use rdzv_core::time::Wall;
use serde_json::Value;

use super::cause::Cause;
use super::exit::Exit;

/// The evidence of one failure. Everything that may be unknown may be missing: of a node that was
/// lost, only the node is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// The full name of the node that it happened on.
    pub host: String,
    /// That node's rank among the agents.
    pub group_rank: Option<GroupRank>,
    /// The worker's role.
    pub role: String,
    /// Its global rank.
    pub rank: Option<Rank>,
    /// Its local rank.
    pub local_rank: Option<LocalRank>,
    /// Its process id.
    pub pid: Option<u32>,
    /// Its exit code, or the signal that ended it.
    pub exit: Option<Exit>,
    /// When the worker was started.
    pub started: Option<Wall>,
    /// When the failure was seen, by the clock of its node.
    pub seen: Option<Wall>,
    /// Whether the agent had signalled the worker while it was running.
    pub stopped_by_agent: bool,
    /// Why the agent killed it, if that was for a fault of its own.
    pub kill_cause: Option<Cause>,
    /// The counter that shows that the kernel killed for lack of memory while it ran.
    pub out_of_memory: Option<String>,
    /// Its error file, if it left one.
    pub error_file: Option<ErrorFile>,
    /// The traceback in its error file, or at the end of its stderr.
    pub traceback: Option<String>,
    /// The last lines of its stderr, oldest first. Empty if the agent has none of them.
    pub stderr_tail: Vec<String>,
}

impl Evidence {
    /// When the worker failed: the time in its error file, else when its end was seen.
    pub fn time(&self) -> Wall {
        let recorded = self.recorded_seconds();
        recorded.map_or(self.seen.unwrap_or_default(), |seconds| {
            Wall::from_unix_micros(seconds.saturating_mul(1_000_000))
        })
    }

    /// When the worker says that it failed, in whole seconds.
    pub fn recorded_seconds(&self) -> Option<i64> {
        self.error_file.as_ref()?.recorded_seconds()
    }
}

/// The file that a worker left at `TORCHELASTIC_ERROR_FILE`: one of two forms of JSON.
///
/// ```json
/// {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "…", "timestamp": "1790000000"}}}
/// {"message": "boom", "timestamp": "1790000000"}
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Its JSON, or why it is not readable as one of the two forms.
    pub content: Result<Value, String>,
}

impl ErrorFile {
    /// Reads the text of an error file.
    pub fn parse(path: PathBuf, text: &str) -> Self {
        Self {
            path,
            content: parse(text),
        }
    }

    fn json(&self) -> Option<&Value> {
        self.content.as_ref().ok()
    }

    /// Class and text of the exception that the worker recorded.
    pub fn message(&self) -> Option<&str> {
        match self.json()?.get("message")? {
            Value::String(text) => Some(text),
            message => message.get("message")?.as_str(),
        }
    }

    /// The traceback that the worker recorded, or its message if it recorded none.
    pub fn traceback(&self) -> Option<&str> {
        match self.json()?.get("message")? {
            Value::String(text) => Some(text),
            message => message
                .pointer("/extraInfo/py_callstack")
                .or_else(|| message.get("message"))?
                .as_str(),
        }
    }

    /// When the worker says that it failed: whole seconds since the Unix epoch.
    pub fn recorded_seconds(&self) -> Option<i64> {
        let content = self.json()?;
        let timestamp = match content.get("message")? {
            Value::Object(message) => message.get("extraInfo")?.get("timestamp")?,
            _ => content.get("timestamp")?,
        };
        match timestamp {
            Value::String(text) => text.trim().parse().ok(),
            Value::Number(number) => number.as_i64().or_else(|| {
                // A fraction is dropped.
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
        serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    match value.get("message") {
        Some(Value::String(_) | Value::Object(_)) => Ok(escaped(value)),
        _ => Err("has no \"message\" that is a text or an object".to_owned()),
    }
}

/// The same with every text in it escaped, as its worker may have copied them from anywhere.
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
