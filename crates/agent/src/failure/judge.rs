//! From what happened here, and what other nodes have said, to the verdict.

use rdzv_agent_proto::group::{Cause, Evidence, Failure};
use rdzv_core::rank::GroupRank;
use rdzv_core::time::Wall;

use crate::worker::WorkerIdentity;
use crate::{AgentError, Outcome, Verdict};

/// What a verdict rests on besides the outcome.
#[derive(Debug)]
pub(super) struct Known<'a> {
    /// The full name of this node.
    pub(super) host: &'a str,
    /// Its rank among the agents.
    pub(super) group_rank: GroupRank,
    /// Its role.
    pub(super) role: &'a str,
    /// The worker that could not be started, if that is what ended the run.
    pub(super) not_started: Option<&'a WorkerIdentity>,
    /// The first failure of the job, if that was on another node.
    pub(super) elsewhere: Option<Failure>,
    /// How many restarts were used.
    pub(super) restart_count: u32,
    /// Now.
    pub(super) at: Wall,
}

/// Puts the failures in order.
pub(super) fn judge(outcome: &Outcome, known: Known<'_>) -> Verdict {
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
            let mut failures = failures.clone();
            if *root_cause < failures.len() {
                failures[..=*root_cause].rotate_right(1);
            }
            failures
        }
        // Another node's failure is not one of this node, if that node is known.
        Outcome::Error(AgentError::PeerFailed { .. }) if known.elsewhere.is_some() => Vec::new(),
        Outcome::Error(error) => vec![of_agent(error, &known)],
    };
    Verdict {
        here: known.elsewhere.is_none(),
        failures: known.elsewhere.into_iter().chain(here).collect(),
        restart_count: known.restart_count,
    }
}

/// The failure of an agent that could not go on.
fn of_agent(error: &AgentError, known: &Known<'_>) -> Failure {
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
    Failure {
        cause,
        evidence: Evidence {
            host: known.host.to_owned(),
            group_rank: Some(known.group_rank),
            role: known.role.to_owned(),
            rank: worker.map(|worker| worker.rank),
            local_rank: worker.map(|worker| worker.local_rank),
            seen: Some(known.at),
            ..Evidence::default()
        },
    }
}
