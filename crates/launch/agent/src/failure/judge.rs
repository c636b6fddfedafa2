//! Verdict on the failures of this node and on the reports of other nodes.

use std::io::ErrorKind;

use rdzv_agent_proto::group::diagnosis::is_loss_of_a_peer;
use rdzv_agent_proto::group::{Cause, Evidence, Failure};
use rdzv_core::time::Wall;

use super::lost_node::LostNode;
use super::{FailureAnalysis, PeerFailure, root_cause};
use crate::outcome::Verdict;
use crate::{AgentError, Outcome, host};

impl PeerFailure {
    /// Returns `true` if this failure came before the first failure of this node.
    ///
    /// The times decide, unless only one of the two failures is the loss of a peer, or the agent
    /// stopped the worker of this node.
    fn came_before(&self, own: &Failure) -> bool {
        if matches!(own.cause, Cause::StoppedByAgent { .. }) {
            return true;
        }
        let losses = [&self.failure.cause, &own.cause].map(is_loss_of_a_peer);
        match losses {
            [false, true] => true,
            [true, false] => false,
            _ => own.evidence.seen.is_some_and(|seen| self.at < seen),
        }
    }
}

impl FailureAnalysis {
    /// Returns the verdict on the run: the failures in order.
    pub(crate) fn verdict(&self, now: Wall, restart_count: u32, outcome: &Outcome) -> Verdict {
        let elsewhere = self.elsewhere(outcome);
        let mut finality = None;
        let here = match outcome {
            Outcome::Succeeded | Outcome::Signalled { .. } | Outcome::Preempted { .. } => {
                return Verdict {
                    restart_count,
                    ..Verdict::default()
                };
            }
            Outcome::Failed {
                failures,
                root_cause,
                finality: reason,
            } => {
                finality = Some(*reason);
                let mut failures = failures.clone();
                if *root_cause < failures.len() {
                    failures[..=*root_cause].rotate_right(1);
                }
                failures
            }
            // If the other node is known, its failure does not count as one of this node.
            Outcome::Error(AgentError::PeerFailed { .. }) if elsewhere.is_some() => Vec::new(),
            Outcome::Error(error) => vec![self.of_agent(now, error)],
        };
        Verdict {
            here: elsewhere.is_none(),
            failures: elsewhere.into_iter().chain(here).collect(),
            restart_count,
            finality,
        }
    }

    /// Returns the first failure of the job, if it was on another node.
    fn elsewhere(&self, outcome: &Outcome) -> Option<Failure> {
        let peer_failure = self.peer_failure.as_ref().filter(|peer_failure| {
            root_cause(outcome).is_none_or(|first| peer_failure.came_before(first))
        });
        // The run ended because the nodes had no rendezvous, and the lost node is the reason.
        let without_others = matches!(
            outcome,
            Outcome::Error(
                AgentError::Rendezvous(_) | AgentError::Store(_) | AgentError::RunClosed { .. }
            )
        );
        let lost = self.lost_node.as_ref().filter(|_| without_others);
        peer_failure
            .map(|peer| peer.failure.clone())
            .or_else(|| lost.map(LostNode::failure))
    }

    fn of_agent(&self, now: Wall, error: &AgentError) -> Failure {
        let cause = match error {
            AgentError::ProgramNotFound { .. } | AgentError::Spawn { .. } => Cause::NotStarted {
                reason: error.to_string(),
            },
            AgentError::Logs { source, .. } if source.kind() == ErrorKind::StorageFull => {
                Cause::DiskFull {
                    text: error.to_string(),
                }
            }
            error => Cause::Agent {
                text: format!("{}: {error}", error.class()),
            },
        };
        let worker = self.not_started.as_ref();
        Failure {
            cause,
            evidence: Evidence {
                host: host::full_name(),
                group_rank: Some(self.group_rank),
                role: self.role.clone(),
                rank: worker.map(|worker| worker.rank),
                local_rank: worker.map(|worker| worker.local_rank),
                seen: Some(now),
                ..Evidence::default()
            },
        }
    }
}
