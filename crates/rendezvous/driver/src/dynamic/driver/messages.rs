//! Texts of changes and errors, with the names of nodes.

use std::collections::BTreeSet;

use rdzv_rendezvous_proto::participant::{self, ParticipantFailure};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState, Settings};

use crate::{Change, RendezvousError};

/// Maximum number of nodes that one sentence names.
const MOST_NAMED: usize = 8;

pub(super) struct Messages {
    pub(super) run_id: String,
    pub(super) endpoint: String,
    pub(super) settings: Settings,
}

impl Messages {
    pub(super) fn change(
        &self,
        round: u64,
        change: participant::ParticipantChange,
        gone: &BTreeSet<NodeDesc>,
        known: Option<&RendezvousState>,
    ) -> Change {
        let reason = match change {
            participant::ParticipantChange::NodesWaiting(nodes) => {
                format!(
                    "{} to join the next round",
                    subject(&nodes, "waits", "wait")
                )
            }
            participant::ParticipantChange::NodesLost(nodes) => {
                self.lost_nodes(&nodes, gone, known)
            }
            participant::ParticipantChange::Dropped => format!(
                "the other nodes treated this node as lost, because they received no heartbeat \
                 from it for {} s; check whether it was suspended or its clock is wrong",
                self.settings.lost_after().as_secs()
            ),
            participant::ParticipantChange::Closed => return Change::Closed,
        };
        Change::Membership { round, reason }
    }

    fn lost_nodes(
        &self,
        nodes: &[NodeDesc],
        gone: &BTreeSet<NodeDesc>,
        known: Option<&RendezvousState>,
    ) -> String {
        // A node that leaves removes its heartbeat from the state.
        let silent =
            |node: &NodeDesc| known.is_some_and(|known| known.last_heartbeats.contains_key(node));
        let how = if nodes.iter().all(|node| gone.contains(node)) {
            "exited without a message"
        } else if nodes.iter().any(silent) {
            "missed its heartbeats"
        } else {
            "left, or missed its heartbeats"
        };
        format!("{} lost ({how})", subject(nodes, "is", "are"))
    }

    pub(super) fn failure(&self, failure: ParticipantFailure) -> RendezvousError {
        let (run_id, endpoint) = (self.run_id.clone(), self.endpoint.clone());
        match failure {
            ParticipantFailure::Closed => RendezvousError::Closed { run_id, endpoint },
            ParticipantFailure::NotNeeded => RendezvousError::NotNeeded { run_id },
            ParticipantFailure::JoinTimeout { joined, elapsed } => RendezvousError::JoinTimeout {
                run_id,
                endpoint,
                joined: joined.iter().map(NodeDesc::to_string).collect(),
                min_nodes: self.settings.min_nodes,
                elapsed,
            },
            ParticipantFailure::WriteTimeout { elapsed } => RendezvousError::Unreachable {
                what: format!(
                    "every attempt to change the state of run '{run_id}' failed, because other \
                     agents changed it first,"
                ),
                endpoint,
                elapsed: Some(elapsed),
                remedy: "lengthen the random pauses between attempts with --rdzv-conf cas_backoff_max_seconds=1",
            },
        }
    }

    pub(super) fn corrupt(&self, why: &str) -> RendezvousError {
        RendezvousError::Corrupt {
            what: format!("the state of run '{}' is corrupt ({why})", self.run_id),
            endpoint: self.endpoint.clone(),
        }
    }

    /// Returns the error for requests after the connection was lost.
    pub(super) fn lost_before(&self, why: &str) -> RendezvousError {
        RendezvousError::Unreachable {
            what: format!("the connection to the rendezvous was lost earlier ({why})"),
            endpoint: self.endpoint.clone(),
            elapsed: None,
            remedy: "restart the agent when the store is available again",
        }
    }
}

fn subject(nodes: &[NodeDesc], one: &str, many: &str) -> String {
    let mut names: Vec<String> = nodes
        .iter()
        .take(MOST_NAMED)
        .map(NodeDesc::to_string)
        .collect();
    if nodes.len() > MOST_NAMED {
        names.push(format!("{} more", nodes.len() - MOST_NAMED));
    }
    match nodes {
        [_] => format!("node {} {one}", names.concat()),
        _ => format!("nodes {} {many}", names.join(", ")),
    }
}

/// `true` if other agents wait for the change that was just written.
///
/// Heartbeats, and new nodes in a round that is still forming, are not such changes.
pub(super) fn is_worth_announcing(
    before: Option<&RendezvousState>,
    after: &RendezvousState,
) -> bool {
    let Some(before) = before else {
        return after.complete || after.closed;
    };
    before.complete != after.complete
        || before.closed != after.closed
        || before.round != after.round
        || before.deadline.is_some() != after.deadline.is_some()
        || before.wait_list != after.wait_list
        || before
            .participants
            .keys()
            .any(|node| !after.participants.contains_key(node))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use rdzv_core::time::Wall;

    use super::*;

    fn node(number: i64) -> NodeDesc {
        NodeDesc::new("10.0.0.5", number)
    }

    fn messages() -> Messages {
        Messages {
            run_id: "run".to_owned(),
            endpoint: "c10d store 10.0.0.1:29400".to_owned(),
            settings: Settings::new(2, 3),
        }
    }

    fn reason(
        change: participant::ParticipantChange,
        gone: &[i64],
        known: &RendezvousState,
    ) -> String {
        let gone = gone.iter().map(|number| node(*number)).collect();
        match messages().change(3, change, &gone, Some(known)) {
            Change::Membership { round: 3, reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn changes_name_the_nodes_and_how_it_was_noticed() {
        let silent = RendezvousState {
            last_heartbeats: BTreeMap::from([(node(1), Wall::from_unix_micros(40_000_000))]),
            ..RendezvousState::default()
        };
        let empty = RendezvousState::default();
        assert_eq!(
            reason(
                participant::ParticipantChange::NodesWaiting(vec![node(1), node(2)]),
                &[],
                &empty
            ),
            "nodes 10.0.0.5_1_0, 10.0.0.5_2_0 wait to join the next round"
        );
        let lost = || participant::ParticipantChange::NodesLost(vec![node(1)]);
        assert_eq!(
            reason(lost(), &[1], &empty),
            "node 10.0.0.5_1_0 is lost (exited without a message)"
        );
        assert_eq!(
            reason(lost(), &[], &silent),
            "node 10.0.0.5_1_0 is lost (missed its heartbeats)"
        );
        let many = participant::ParticipantChange::NodesWaiting((0..10).map(node).collect());
        assert!(reason(many, &[], &empty).contains("10.0.0.5_7_0, 2 more wait"));
        assert!(reason(participant::ParticipantChange::Dropped, &[], &empty).contains("for 15 s"));
    }

    #[test]
    fn too_few_nodes_are_counted_and_named() {
        let error = messages().failure(ParticipantFailure::JoinTimeout {
            joined: vec![node(1)],
            elapsed: Duration::from_millis(4000),
        });
        assert_eq!(
            error.to_string(),
            "run 'run' had 1 of at least 2 nodes after 4.0 s of waiting at c10d store \
             10.0.0.1:29400 (joined: 10.0.0.5_1_0)\nhelp: check that the other agents run with the same \
             --rdzv-id and --rdzv-endpoint and can reach it, or wait longer with --rdzv-conf \
             join_timeout=SECONDS"
        );
    }

    #[test]
    fn heartbeats_and_joins_of_a_forming_round_are_not_worth_telling() {
        let before = RendezvousState {
            participants: BTreeMap::from([(node(1), 0)]),
            ..RendezvousState::default()
        };
        let mut after = before.clone();
        after.last_heartbeats.insert(node(1), Wall::default());
        after.participants.insert(node(2), 0);
        assert!(!is_worth_announcing(Some(&before), &after));
        let complete = RendezvousState {
            complete: true,
            ..after.clone()
        };
        assert!(is_worth_announcing(Some(&after), &complete));
        assert!(is_worth_announcing(Some(&after), &before), "a node left");
        assert!(!is_worth_announcing(None, &before));
    }
}
