//! From what happened here, and what other nodes have said, to the verdict.

use rdzv_agent_proto::group::Cause;
use rdzv_agent_proto::group::diagnosis;
use rdzv_agent_proto::group::record::{self, CauseRecord, FailureRecord};
use rdzv_core::time::Wall;
use serde_json::Value;

use super::{JudgedFailure, Verdict};
use crate::{AgentError, Outcome, WorkerFailure, WorkerIdentity};

/// What a verdict rests on besides the outcome.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    /// The full name of this node.
    pub(crate) host: &'a str,
    /// Its rank among the agents.
    pub(crate) group_rank: u32,
    /// Its role.
    pub(crate) role: &'a str,
    /// The worker that could not be started, if that is what ended the run.
    pub(crate) not_started: Option<&'a WorkerIdentity>,
    /// The first failure of the job, if that was on another node.
    pub(crate) elsewhere: Option<FailureRecord>,
    /// How many restarts were used.
    pub(crate) restart_count: u32,
    /// Now.
    pub(crate) at: Wall,
}

/// Puts the failures in order.
pub(crate) fn judge(outcome: &Outcome, known: Known<'_>) -> Verdict {
    let here = match outcome {
        Outcome::Succeeded | Outcome::Signalled { .. } => {
            return Verdict {
                restart_count: known.restart_count,
                ..Verdict::default()
            };
        }
        Outcome::Failed {
            failures,
            root_cause,
        } => {
            let mut records: Vec<FailureRecord> = failures.iter().map(of_worker).collect();
            if *root_cause < records.len() {
                let first = records.remove(*root_cause);
                records.insert(0, first);
            }
            records
        }
        // Another node's failure is not one of this node, if that node is known.
        Outcome::Error(AgentError::PeerFailed { .. }) if known.elsewhere.is_some() => Vec::new(),
        Outcome::Error(error) => vec![of_agent(error, &known)],
    };
    let is_here = known.elsewhere.is_none();
    let records: Vec<FailureRecord> = known.elsewhere.into_iter().chain(here).collect();
    Verdict {
        first: records.first().cloned(),
        here: is_here,
        failures: records
            .into_iter()
            .enumerate()
            .map(|(index, record)| JudgedFailure {
                record,
                secondary: index > 0,
            })
            .collect(),
        restart_count: known.restart_count,
    }
}

/// The record of a failed worker of this node.
pub(crate) fn of_worker(failure: &WorkerFailure) -> FailureRecord {
    let recorded = failure
        .error_file
        .as_ref()
        .and_then(|file| file.content.as_ref().ok())
        .and_then(traceback);
    FailureRecord {
        host: failure.host.clone(),
        group_rank: Some(failure.group_rank.0),
        role: failure.role.clone(),
        rank: Some(failure.rank.0),
        local_rank: Some(failure.local_rank.0),
        pid: Some(failure.pid),
        exit_code: Some(failure.exit.as_number()),
        time: record::time(failure.exited),
        cause: CauseRecord::from(&failure.cause),
        traceback: recorded.or_else(|| diagnosis::traceback(&failure.stderr_tail)),
        stderr_tail: failure.stderr_tail.clone(),
        error_file: failure
            .error_file
            .as_ref()
            .map(|file| file.path.display().to_string()),
    }
}

fn traceback(content: &Value) -> Option<String> {
    match content.get("message")? {
        Value::String(text) => Some(text.clone()),
        message => {
            let stack = message.pointer("/extraInfo/py_callstack");
            let text = stack.or_else(|| message.get("message"))?.as_str()?;
            Some(text.to_owned())
        }
    }
}

/// The record of an agent that could not go on.
fn of_agent(error: &AgentError, known: &Known<'_>) -> FailureRecord {
    let cause = match error {
        AgentError::ProgramNotFound { .. } | AgentError::Spawn { .. } => Cause::NotStarted {
            reason: error.to_string(),
        },
        AgentError::Logs { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            Cause::DiskFull {
                text: error.to_string(),
            }
        }
        error => Cause::Agent {
            text: format!("{}: {error}", error.class()),
        },
    };
    let worker = known.not_started;
    FailureRecord {
        host: known.host.to_owned(),
        group_rank: Some(known.group_rank),
        role: known.role.to_owned(),
        rank: worker.map(|worker| worker.rank.0),
        local_rank: worker.map(|worker| worker.local_rank.0),
        time: record::time(known.at),
        cause: CauseRecord::from(&cause),
        ..FailureRecord::default()
    }
}
