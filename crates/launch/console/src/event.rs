//! Events of a run in progress, as one sentence each.

use rdzv_agent_proto::group::{Failure, MembershipCause, membership};

use crate::line::{Line, LineRole, cut, said};
use crate::quantity::count;
use crate::stop;

/// Maximum number of columns of a cause within a sentence.
const CAUSE: usize = 160;

/// A restart of the workers after a failure of one of them.
#[derive(Debug, Clone, Copy)]
pub struct Restart<'a> {
    /// Number of this restart, from 1.
    pub number: u32,
    /// `--max-restarts`.
    pub most: u32,
    /// The first failure of the attempt, if it is known.
    pub failure: Option<&'a Failure>,
    /// Ranks of this node that keep their process (`--in-process`).
    pub kept: &'a [u32],
}

impl Restart<'_> {
    /// Returns the sentence.
    /// For example: `restart 1 of 3: rank 5 on node-b failed (ValueError: boom); all workers …`.
    pub fn sentence(&self) -> String {
        let Self {
            number,
            most,
            failure,
            kept,
        } = self;
        let why = match failure {
            Some(failure) => format!("{} failed ({})", subject(failure), cause(failure, CAUSE)),
            None => "workers failed".to_owned(),
        };
        let then = match kept {
            [] => "all workers restart".to_owned(),
            [_] => format!("{} keeps its process", stop::ranks(kept)),
            _ => format!("{} keep their processes", stop::ranks(kept)),
        };
        format!("restart {number} of {most}: {why}; {then}")
    }

    /// Returns the sentence as lines.
    pub fn lines(&self, width: Option<usize>) -> Vec<Line> {
        said(LineRole::Warning, &self.sentence(), width)
    }
}

/// A change of nodes, after which a new round forms.
#[derive(Debug, Clone, Copy)]
pub struct Regrouped<'a> {
    /// The sentence of the rendezvous, with the nodes and the observation.
    pub reason: &'a str,
    /// Number of nodes of the new round, if that round exists already.
    pub nodes: Option<u32>,
    /// `true` if workers of this node keep their process (`--in-process`).
    pub is_in_process: bool,
}

impl Regrouped<'_> {
    /// Returns a sentence that names the change and, if known, the number of nodes.
    pub fn sentence(&self) -> String {
        let reason = membership::hosts(self.reason);
        let reason = reason
            .strip_prefix("node ")
            .or_else(|| reason.strip_prefix("nodes "))
            .unwrap_or(&reason);
        let what = match membership::cause(self.reason) {
            MembershipCause::Waiting => {
                let (who, _) = reason.split_once(" wait").unwrap_or((reason, ""));
                format!("{who} joined")
            }
            MembershipCause::Restarted => {
                let (who, _) = reason.split_once(" joins").unwrap_or((reason, ""));
                let (who, _) = who.split_once(" has left").unwrap_or((who, ""));
                let then = if self.is_in_process {
                    "so all nodes form the next round"
                } else {
                    "so all nodes restart theirs"
                };
                match who.split_once(" and") {
                    Some((lost, _)) => format!("{lost}, {then}"),
                    None => format!("{who} restarts its workers, {then}"),
                }
            }
            MembershipCause::Lost => reason.to_owned(),
        };
        match self.nodes {
            Some(1) => format!("{what}; 1 node continues"),
            Some(nodes) => format!("{what}; {nodes} nodes continue"),
            None => what,
        }
    }

    /// Returns the sentence as lines.
    pub fn lines(&self, width: Option<usize>) -> Vec<Line> {
        said(LineRole::Warning, &self.sentence(), width)
    }
}

/// Returns the worker, or the node, in few words: `rank 5 on node-b`.
pub(crate) fn subject(failure: &Failure) -> String {
    let host = &failure.evidence.host;
    match failure.evidence.rank {
        Some(rank) if host.is_empty() => format!("rank {rank}"),
        Some(rank) => format!("rank {rank} on {host}"),
        None => format!("node {host}"),
    }
}

/// Returns the cause, in at most `room` columns.
pub(crate) fn cause(failure: &Failure, room: usize) -> String {
    cut(&failure.cause.to_string(), room)
}

/// Returns the size of a round: `8 workers on 2 nodes`.
pub fn size(workers: u32, nodes: u32) -> String {
    format!("{} on {}", count(workers, "worker"), count(nodes, "node"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::tests::failure;
    use rdzv_agent_proto::group::Cause;

    #[test]
    fn a_restart_names_the_rank_and_the_cause() {
        let failure = failure(
            5,
            "node-b",
            1,
            &Cause::exception("ValueError: bad config: no key 'lr'"),
        );
        let restart = Restart {
            number: 1,
            most: 3,
            failure: Some(&failure),
            kept: &[],
        };
        assert_eq!(
            restart.sentence(),
            "restart 1 of 3: rank 5 on node-b failed (ValueError: bad config: no key 'lr'); all workers restart"
        );
        let restart = Restart {
            failure: None,
            ..restart
        };
        assert_eq!(
            restart.sentence(),
            "restart 1 of 3: workers failed; all workers restart"
        );
        let kept = |kept| Restart { kept, ..restart }.sentence();
        assert_eq!(
            kept(&[0, 1, 3]),
            "restart 1 of 3: workers failed; ranks 0-1, 3 keep their processes"
        );
        assert_eq!(
            kept(&[2]),
            "restart 1 of 3: workers failed; rank 2 keeps its process"
        );
    }

    #[test]
    fn nodes_that_come_and_go_are_named_by_their_hosts() {
        for (reason, nodes, text) in [
            (
                "node node-c_4242_0 is lost (killed)",
                Some(3),
                "node-c is lost (killed); 3 nodes continue",
            ),
            (
                "node node-c_4242_0 is lost (killed)",
                Some(1),
                "node-c is lost (killed); 1 node continues",
            ),
            (
                "node node-d_7_0 waits to join",
                Some(4),
                "node-d joined; 4 nodes continue",
            ),
            ("node node-d_7_0 waits to join", None, "node-d joined"),
            (
                "nodes b_1_0, c_2_0 wait to join the next round",
                Some(4),
                "b, c joined; 4 nodes continue",
            ),
            (
                "node b_1_0 joins again",
                Some(2),
                "b restarts its workers, so all nodes restart theirs; 2 nodes continue",
            ),
            (
                "node b_1_0 has lost ranks 2, 3 and joins again",
                Some(2),
                "b has lost ranks 2, 3, so all nodes restart theirs; 2 nodes continue",
            ),
        ] {
            let regrouped = Regrouped {
                reason,
                nodes,
                is_in_process: false,
            };
            assert_eq!(regrouped.sentence(), text);
        }
    }
}
