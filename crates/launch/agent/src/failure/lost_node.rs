//! Nodes that were lost or have left, and a lost host of the rendezvous.

use rdzv_agent_proto::group::membership::{self, host_of};
use rdzv_agent_proto::group::{Cause, Evidence, Failure, MembershipCause};
use rdzv_core::time::Wall;
use rdzv_rendezvous::RendezvousError;

/// Lost node, or lost host of the rendezvous.
#[derive(Debug)]
pub(super) struct LostNode {
    node: String,
    what: String,
    at: Wall,
}

impl LostNode {
    /// Returns the node that a membership sentence reports as lost.
    pub(super) fn in_sentence(reason: &str, at: Wall) -> Option<Self> {
        if membership::cause(reason) != MembershipCause::Lost {
            return None;
        }
        let reason = reason
            .strip_prefix("node ")
            .or_else(|| reason.strip_prefix("nodes "))?;
        // A node that leaves on a signal counts too, because too few nodes may be left.
        let (node, _) = [" is lost: ", " is lost (", " are lost (", " has left"]
            .into_iter()
            .find_map(|words| reason.split_once(words))?;
        Some(Self {
            node: node.split(", ").map(host_of).collect::<Vec<_>>().join(", "),
            what: reason.to_owned(),
            at,
        })
    }

    pub(super) fn host(error: &RendezvousError, at: Wall) -> Self {
        let node = match error {
            RendezvousError::Unreachable { endpoint, .. } => endpoint.clone(),
            _ => "the rendezvous".to_owned(),
        };
        Self {
            what: format!(
                "the rendezvous host, or the connection to it, was lost: {}",
                error.sentence()
            ),
            node,
            at,
        }
    }

    pub(super) fn failure(&self) -> Failure {
        Failure {
            cause: Cause::NodeLost {
                node: self.what.clone(),
            },
            evidence: Evidence {
                host: self.node.clone(),
                seen: Some(self.at),
                ..Evidence::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_of_the_host_has_no_advice_inside_its_sentence() {
        let error = RendezvousError::Unreachable {
            what: "no answer".to_owned(),
            endpoint: "head:29400".to_owned(),
            elapsed: None,
            remedy: "wait longer",
        };
        let lost = LostNode::host(&error, Wall::default()).failure();
        assert_eq!(
            lost.cause.to_string(),
            "node lost: the rendezvous host, or the connection to it, was lost: no answer at \
             head:29400"
        );
    }

    #[test]
    fn only_losses_are_losses() {
        let lost = |reason: &str| {
            LostNode::in_sentence(reason, Wall::default()).map(|lost| {
                let failure = lost.failure();
                (failure.evidence.host, failure.cause.to_string())
            })
        };
        for (reason, host) in [
            ("node_b_4242_0 is lost: its connection was closed", "node_b"),
            ("b_1_0 is lost (ended without a word)", "b"),
            ("b_1_0 has left", "b"),
        ] {
            let expected = (host.to_owned(), format!("node lost: {reason}"));
            assert_eq!(lost(&format!("node {reason}")), Some(expected));
        }
        let (host, _) = lost("nodes b_1_0, c_2_0 are lost (missed its heartbeats)").unwrap();
        assert_eq!(host, "b, c");
        for reason in [
            "node b_1_0 waits to join the next round",
            "the other nodes treated this node as lost, because they received no heartbeat from it \
             for 15 s",
        ] {
            assert_eq!(lost(reason), None, "{reason}");
        }
    }
}
