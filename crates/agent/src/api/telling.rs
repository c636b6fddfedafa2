//! What the other nodes are told of a failure among a supervisor's workers, in the form in which
//! agents with processes tell it.

use rdzv_agent_proto::group::record::{FailureRecord, time};

use super::driving::Driving;
use super::{ProcessFailure, WorkerId};
use crate::host;
use crate::verdict::MOST_TOLD;

impl Driving<'_> {
    /// The sentence and the record of the failure that came first, or what there is.
    pub(super) fn told(&self) -> String {
        match self.failures.first() {
            Some(failure) => {
                let age = self.clock.now().wall.since(failure.time);
                self.record(failure)
                    .told(&format!("worker {failure}"), age, MOST_TOLD)
            }
            None => "its workers failed".to_owned(),
        }
    }

    fn record(&self, failure: &ProcessFailure) -> FailureRecord {
        let group_rank = self.view.change(|group| group.group_rank);
        FailureRecord {
            host: host::full_name(),
            group_rank: group_rank.map(|rank| rank.0),
            role: self.spec.role().to_owned(),
            rank: Some(failure.rank.0),
            local_rank: Some(failure.local_rank.0),
            pid: match failure.id {
                Some(WorkerId::Process(pid)) => Some(pid),
                _ => None,
            },
            exit_code: Some(failure.exit.as_number()),
            time: time(failure.time),
            cause: (&failure.cause).into(),
            ..FailureRecord::default()
        }
    }
}

/// The sentence for people in what another node has said of its failure.
pub(super) fn heard(reason: &str) -> String {
    FailureRecord::heard(reason).0.to_owned()
}
