//! What the other nodes are told of a failure among a supervisor's workers, in the form in which
//! agents with processes tell it.

use rdzv_agent_proto::group::{Evidence, Failure};

use super::driving::Driving;
use super::{ProcessFailure, WorkerId};
use crate::host;
use crate::verdict::MOST_TOLD;

impl Driving<'_> {
    /// The sentence and the record of the failure that came first, or what there is.
    pub(super) fn told(&self) -> String {
        match self.failures.first() {
            Some(failure) => {
                let sentence = format!("worker {failure}");
                let now = self.clock.now().wall;
                self.failure(failure).encode(&sentence, now, MOST_TOLD)
            }
            None => "its workers failed".to_owned(),
        }
    }

    fn failure(&self, failure: &ProcessFailure) -> Failure {
        Failure {
            cause: failure.cause.clone(),
            evidence: Evidence {
                host: host::full_name(),
                group_rank: self.view.change(|group| group.group_rank),
                role: self.spec.role().to_owned(),
                rank: Some(failure.rank),
                local_rank: Some(failure.local_rank),
                pid: match failure.id {
                    Some(WorkerId::Process(pid)) => Some(pid),
                    _ => None,
                },
                exit: Some(failure.exit),
                seen: Some(failure.time),
                ..Evidence::default()
            },
        }
    }
}

/// The sentence for people in what another node has said of its failure.
pub(super) fn heard(reason: &str) -> String {
    Failure::decode(reason).0.to_owned()
}
