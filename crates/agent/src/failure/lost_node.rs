//! Nodes that have vanished without a word.

use rdzv_agent_proto::group::{Cause, Evidence, Failure, MembershipCause};
use rdzv_core::time::Wall;
use rdzv_rendezvous::RendezvousError;

/// A node that was lost, or whoever hosts what the nodes meet at.
#[derive(Debug)]
pub(super) struct LostNode {
    node: String,
    what: String,
    at: Wall,
}

impl LostNode {
    /// The one that the sentence about a change of membership tells of, if that is what it tells.
    pub(super) fn in_sentence(reason: &str, at: Wall) -> Option<Self> {
        if cause_of(reason) != MembershipCause::Lost {
            return None;
        }
        let reason = reason
            .strip_prefix("node ")
            .or_else(|| reason.strip_prefix("nodes "))?;
        // Who leaves in order, at a signal, is missed just as much if too few are left.
        let (node, _) = [" is lost: ", " is gone (", " are gone (", " has left"]
            .into_iter()
            .find_map(|words| reason.split_once(words))?;
        Some(Self {
            node: node.split(", ").map(host_of).collect::<Vec<_>>().join(", "),
            what: reason.to_owned(),
            at,
        })
    }

    /// Whoever hosts the rendezvous cannot be reached any more.
    pub(super) fn host(error: &RendezvousError, at: Wall) -> Self {
        let node = match error {
            RendezvousError::Unreachable { place, .. } => place.clone(),
            _ => "what the nodes meet at".to_owned(),
        };
        Self {
            what: format!("whoever hosts the rendezvous was lost, or the way there: {error}"),
            node,
            at,
        }
    }

    /// As it is reported.
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

/// The change according to the sentence of a backend. A sentence that is not known may be about a
/// loss.
pub(super) fn cause_of(reason: &str) -> MembershipCause {
    // An agent of torchrun leaves a round to restart its workers; one that ends is lost, or closes the run.
    if reason.ends_with(" joins again") || reason.ends_with(" has left the round") {
        MembershipCause::Restarted
    } else if [" waits to join", " wait to join"]
        .iter()
        .any(|words| reason.contains(words))
    {
        MembershipCause::Waiting
    } else {
        MembershipCause::Lost
    }
}

/// Agents are known by host, process id and a number: `node-b_4242_0`.
fn host_of(agent: &str) -> &str {
    let mut parts = agent.rsplitn(3, '_');
    let numbers = [parts.next(), parts.next()];
    let is_number = |part: Option<&str>| {
        part.is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match parts.next() {
        Some(host) if numbers.into_iter().all(is_number) => host,
        _ => agent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_and_new_nodes_are_no_losses() {
        for (reason, cause) in [
            ("node b_1_0 joins again", MembershipCause::Restarted),
            ("node b_1_0 has left the round", MembershipCause::Restarted),
            ("node b_1_0 waits to join", MembershipCause::Waiting),
            (
                "nodes b_1_0, c_2_0 wait to join the next round",
                MembershipCause::Waiting,
            ),
            (
                "nodes b_1_0, c_2_0 are gone (ended without a word)",
                MembershipCause::Lost,
            ),
            ("node b_1_0 has left", MembershipCause::Lost),
        ] {
            assert_eq!(cause_of(reason), cause, "{reason}");
        }
    }

    #[test]
    fn only_losses_are_losses() {
        let lost = |reason| {
            LostNode::in_sentence(reason, Wall::default()).map(|lost| {
                let failure = lost.failure();
                (failure.evidence.host, failure.cause.to_string())
            })
        };
        assert_eq!(
            lost("node node_b_4242_0 is lost: its connection was closed"),
            Some((
                "node_b".to_owned(),
                "node lost: node_b_4242_0 is lost: its connection was closed".to_owned()
            ))
        );
        let (host, _) = lost("node b_1_0 is gone (ended without a word)").unwrap();
        assert_eq!(host, "b");
        let (host, _) = lost("nodes b_1_0, c_2_0 are gone (missed its heartbeats)").unwrap();
        assert_eq!(host, "b, c");
        let (host, text) = lost("node b_1_0 has left").unwrap();
        assert_eq!(
            (host.as_str(), text.as_str()),
            ("b", "node lost: b_1_0 has left")
        );
        for reason in [
            "node b_1_0 waits to join the next round",
            "the other nodes took this one for lost, because they had not heard of it for 15 s",
        ] {
            assert_eq!(lost(reason), None, "{reason}");
        }
    }
}
