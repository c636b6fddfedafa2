//! Model of a whole job: the reports of its agents.
//!
//! An agent sends its report as JSON: first all of it, then only the values that have changed.

use std::collections::BTreeMap;

use rdzv_agent::observe::{NodeReport, OutputTail, ShownStack, WorkerStatus};
use rdzv_core::escape::{escape, escape_lines};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Reason why a view shows only the node of its agent.
pub(crate) const ALONE: &str = "the rendezvous of this job carries no reports of other nodes";

/// Key with the length of an array in a change.
const LENGTH: &str = "#";

/// Message of an agent about the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Message {
    /// Name of the agent: its host and process id.
    pub(crate) from: String,
    /// Number of the report; a change applies to the previous number.
    pub(crate) number: u64,
    /// `true` if the change begins with an empty report.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) is_whole: bool,
    /// Change of the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<Value>,
    /// `true` if the agent is silent; `None` if that has not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) is_silent: Option<bool>,
    /// `true` if the agent is no longer a part of the job.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) is_gone: bool,
    /// Question to all agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) question: Option<Question>,
    /// Answer to a question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Answer>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde passes it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Question of a viewer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Question {
    pub(crate) id: u64,
    /// Rank that the question is about; `None`: all ranks.
    pub(crate) rank: Option<u32>,
    /// Output instead of stacks.
    pub(crate) output: Option<Output>,
}

/// Part of the output that a viewer requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Output {
    /// Position of the first requested line; `None` for the last lines.
    pub(crate) from: Option<u64>,
    /// Process that wrote the lines before the position.
    pub(crate) pid: u32,
    /// Maximum number of lines.
    pub(crate) lines: Option<usize>,
    /// `true` for the standard error.
    pub(crate) is_stderr: bool,
    /// `true` if the answer waits for a new line.
    pub(crate) waits: bool,
}

/// Answer of one agent to a question.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    pub(crate) stacks: Vec<ShownStack>,
    pub(crate) tail: Option<OutputTail>,
}

/// Parses JSON of another process, and escapes its texts.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let mut value: Value = serde_json::from_slice(bytes)?;
    escape_all(&mut value);
    serde_json::from_value(value)
}

/// Escapes all texts of a value; line breaks stay.
fn escape_all(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('\n') => *text = escape_lines(text),
        Value::String(text) => *text = escape(text),
        Value::Array(values) => values.iter_mut().for_each(escape_all),
        Value::Object(values) => values.values_mut().for_each(escape_all),
        _ => {}
    }
}

/// Returns the change from one value to another; `None` if they are equal.
///
/// `old` is `None` if there was no value.
pub(crate) fn difference(old: Option<&Value>, new: &Value) -> Option<Value> {
    if old == Some(new) {
        return None;
    }
    let old = old.unwrap_or(&Value::Null);
    match new {
        Value::Object(new) => {
            let changed = new.iter().filter_map(|(key, value)| {
                let change = difference(old.get(key), value)?;
                Some((key.clone(), change))
            });
            Some(Value::Object(changed.collect()))
        }
        Value::Array(new) => {
            let mut change = Map::new();
            change.insert(LENGTH.to_owned(), new.len().into());
            for (index, value) in new.iter().enumerate() {
                if let Some(value) = difference(old.get(index), value) {
                    change.insert(index.to_string(), value);
                }
            }
            Some(Value::Object(change))
        }
        _ => Some(new.clone()),
    }
}

/// Applies a change.
pub(crate) fn apply(value: &mut Value, change: Value) {
    let Value::Object(mut change) = change else {
        *value = change;
        return;
    };
    if let Some(length) = change.remove(LENGTH).and_then(|length| length.as_u64()) {
        if !value.is_array() {
            *value = Value::Array(Vec::new());
        }
        if let Value::Array(values) = value {
            // A change contains all new values, so a length beyond them is not genuine.
            let most = values.len() + change.len();
            values.resize(most.min(length as usize), Value::Null);
            for (index, change) in change {
                let index = index.parse().ok();
                if let Some(value) = index.and_then(|index: usize| values.get_mut(index)) {
                    apply(value, change);
                }
            }
        }
        return;
    }
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    if let Value::Object(values) = value {
        for (key, change) in change {
            apply(values.entry(key).or_insert(Value::Null), change);
        }
    }
}

/// Report of one agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agent {
    pub(crate) value: Value,
    pub(crate) number: u64,
    pub(crate) is_silent: bool,
    pub(crate) report: NodeReport,
}

/// The known part of a whole job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Job {
    pub(crate) agents: BTreeMap<String, Agent>,
}

/// Health of a node or a worker; the first variant is the most urgent one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    Failed,
    Silent,
    Waiting,
    Healthy,
    Ended,
}

impl Job {
    /// Applies a message; `false` if a report is missing before it.
    pub(crate) fn take(&mut self, message: Message) -> bool {
        if message.is_gone {
            self.agents.remove(&message.from);
            return true;
        }
        if message.change.is_none() && message.is_silent.is_none() {
            return true;
        }
        let known = self.agents.get(&message.from).map(|agent| agent.number);
        let previous = message.number.checked_sub(1);
        if !message.is_whole && message.change.is_some() && (known.is_none() || known != previous) {
            return known.is_some_and(|known| known >= message.number);
        }
        let agent = self.agents.entry(message.from).or_default();
        if let Some(is_silent) = message.is_silent {
            agent.is_silent = is_silent;
        }
        if let Some(change) = message.change {
            if message.is_whole {
                agent.value = Value::Null;
            }
            agent.number = message.number;
            apply(&mut agent.value, change);
            if let Ok(report) = serde_json::from_value(agent.value.clone()) {
                agent.report = report;
            }
        }
        true
    }

    /// Returns the messages that make an empty model equal to this one.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message> {
        self.agents.iter().map(|(name, agent)| Message {
            from: name.clone(),
            number: agent.number,
            is_whole: true,
            change: Some(agent.value.clone()),
            is_silent: Some(agent.is_silent),
            ..Message::default()
        })
    }

    /// Returns the name of the job.
    pub(crate) fn name(&self) -> &str {
        let first = self.agents.values().next();
        first.map_or("", |agent| &agent.report.run_id)
    }

    /// Returns the name of a node for users.
    ///
    /// The names of two agents on one host differ by their group rank.
    pub(crate) fn node_name(&self, agent: &Agent) -> String {
        let (node, rank) = (&agent.report.node, agent.report.group_rank);
        let mut others = self
            .agents
            .values()
            .filter(|other| other.report.node == *node);
        match rank.filter(|_| others.nth(1).is_some()) {
            Some(rank) => format!("{node} #{rank}"),
            None => node.to_string(),
        }
    }

    /// Returns the latest round of the job.
    pub(crate) fn round(&self) -> Option<u64> {
        let reports = self.agents.values().map(|agent| &agent.report);
        reports.filter_map(|report| report.round).max()
    }

    /// Returns the number of nodes, workers, and running workers.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let reports = || self.agents.values().map(|agent| &agent.report);
        let nodes = reports().filter_map(|report| report.group_world_size).max();
        let nodes = nodes
            .map_or(0, |nodes| nodes as usize)
            .max(self.agents.len());
        let workers = || reports().flat_map(|report| &report.workers);
        let world = reports().filter_map(|report| report.world_size).max();
        let world = world.unwrap_or(0) as usize;
        let running = workers().filter(|worker| worker.running).count();
        (nodes, world.max(workers().count()), running)
    }

    /// Returns the failure of the job that happened first.
    pub(crate) fn failure(&self) -> Option<&rdzv_agent::observe::KnownFailure> {
        let reports = self.agents.values().map(|agent| &agent.report);
        let failed = reports.filter(|report| report.failure.is_some());
        let first_bad = |report: &&NodeReport| {
            let bad = report.spans.iter().filter(|span| span.is_bad);
            let ends = bad
                .filter_map(|span| span.end)
                .map(|end| (end * 1e6) as u64);
            ends.min().unwrap_or(u64::MAX)
        };
        failed.min_by_key(first_bad)?.failure.as_ref()
    }
}

impl Agent {
    pub(crate) fn health(&self) -> Health {
        let report = &self.report;
        let mut workers = report.workers.iter();
        if workers.any(|worker| worker.health() == Health::Failed) {
            return Health::Failed;
        }
        match report.state.as_str() {
            "FAILED" | "UNHEALTHY" => Health::Failed,
            "SUCCEEDED" => Health::Ended,
            _ if self.is_silent => Health::Silent,
            _ if report.awaiting.is_some() || report.workers.is_empty() => Health::Waiting,
            _ => Health::Healthy,
        }
    }
}

/// Health of a worker.
pub(crate) trait OfWorker {
    fn health(&self) -> Health;
}

impl OfWorker for WorkerStatus {
    fn health(&self) -> Health {
        match self.exit_code {
            Some(0) => Health::Ended,
            // The agent stops the other workers of a failed group with signals.
            Some(-15) => Health::Waiting,
            Some(_) => Health::Failed,
            None => Health::Healthy,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_turns_the_old_value_into_the_new_one() {
        let values = [
            json!({"a": 1, "b": [1, 2, {"c": null}], "d": {"e": "x"}}),
            json!({"a": 1, "b": [1, {"c": 5}], "d": null}),
            json!({"a": [], "b": [], "d": {"e": {"f": []}}}),
            json!(null),
        ];
        for old in &values {
            for new in &values {
                let mut value = old.clone();
                match difference(Some(old), new) {
                    Some(change) => apply(&mut value, change),
                    None => assert_eq!(old, new),
                }
                assert_eq!(difference(Some(&value), new), None, "{old} {new} {value}");
            }
        }
        let change = difference(Some(&values[0]), &json!({"a": 2, "b": [1, 2, {"c": null}]}));
        assert_eq!(change, Some(json!({"a": 2})));
    }

    #[test]
    fn a_report_that_is_missing_is_noticed() {
        let mut job = Job::default();
        let message = |number, is_whole| Message {
            from: "n/1".to_owned(),
            number,
            is_whole,
            change: Some(json!({"round": number})),
            ..Message::default()
        };
        assert!(!job.take(message(7, false)));
        assert!(job.take(message(7, true)));
        assert!(job.take(message(8, false)));
        assert!(job.take(message(8, false)), "a repetition");
        assert!(!job.take(message(10, false)));
        let mut empty = Job::default();
        assert!(!empty.take(message(0, false)), "no number precedes 0");
        assert_eq!(job.round(), Some(8));
        let mut copy = Job::default();
        assert!(job.messages().all(|message| copy.take(message)));
        assert_eq!(copy.agents["n/1"].value, job.agents["n/1"].value);
    }

    #[test]
    fn a_change_reserves_no_memory_beyond_its_values() {
        let mut value = Value::Null;
        apply(&mut value, json!({"#": u64::MAX, "0": {"#": 9, "0": 1}}));
        assert_eq!(value, json!([[1]]));
    }

    #[test]
    fn texts_of_other_agents_are_escaped() {
        let message = json!({"from": "n\u{1b}[2J", "change": {"role": "a\u{202e}b"}});
        let message: Message = parse(message.to_string().as_bytes()).unwrap();
        assert_eq!(message.from, "n\\u{1b}[2J");
        assert_eq!(message.change, Some(json!({"role": "a\\u{202e}b"})));
        assert!(parse::<Message>(b"{").is_err());
    }
}
