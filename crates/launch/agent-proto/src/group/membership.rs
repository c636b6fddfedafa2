//! Parses changes of membership from the sentences of the backends.

use super::types::MembershipCause;

/// Returns the change that a backend's sentence describes.
/// An unknown sentence counts as a loss.
pub fn cause(reason: &str) -> MembershipCause {
    // A torchrun agent leaves a round to restart its workers. An agent that exits is lost, or
    // closes the run.
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

/// Returns the ranks that another node has lost, and that node's host.
pub fn lost_ranks(reason: &str) -> Option<(&str, Vec<u32>)> {
    let (node, ranks) = reason.split_once(" has lost rank")?;
    let numbers = ranks.split([' ', ',']).filter_map(|word| word.parse().ok());
    let node = node.strip_prefix("node ").unwrap_or(node);
    Some((host_of(node), numbers.collect()))
}

/// `true` if a successful node need not wait for others after this loss.
/// The other nodes have succeeded too, or have continued without it.
pub fn is_final(reason: &str) -> bool {
    reason.ends_with(", and the workers of all other nodes have succeeded")
        || reason.starts_with("the other nodes continued ")
        || reason.starts_with("the other nodes treat this node as lost")
}

/// Returns the host in an agent's name.
/// The name consists of host, process id and a number: `node-b_4242_0`. A name of another form is
/// returned whole.
pub fn host_of(agent: &str) -> &str {
    let mut parts = agent.rsplitn(3, '_');
    let numbers = [parts.next(), parts.next()];
    let is_number = |part: Option<&str>| {
        part.is_some_and(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match parts.next() {
        Some(host) if numbers.into_iter().all(is_number) => host,
        _ => agent,
    }
}

/// Returns the sentence with each agent's full name shortened to its host.
pub fn hosts(reason: &str) -> String {
    let word = |word: &str| {
        let agent = word.trim_end_matches([',', ';', ':']);
        format!("{}{}", host_of(agent), &word[agent.len()..])
    };
    let words: Vec<String> = reason.split(' ').map(word).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_in_a_sentence_become_hosts() {
        assert_eq!(host_of("node_b_4242_0"), "node_b");
        assert_eq!(host_of("node_b"), "node_b");
        assert_eq!(
            hosts("nodes b_1_0, c_2_0 wait to join the next round"),
            "nodes b, c wait to join the next round"
        );
    }

    #[test]
    fn ranks_that_a_node_has_lost_are_read_from_its_sentence() {
        assert_eq!(
            lost_ranks("node b_1_0 has lost rank 3 and joins again"),
            Some(("b", vec![3]))
        );
        assert_eq!(
            lost_ranks("node node-b has lost ranks 2, 3 and joins again"),
            Some(("node-b", vec![2, 3]))
        );
        assert_eq!(lost_ranks("node b_1_0 joins again"), None);
    }

    #[test]
    fn restarts_and_new_nodes_are_no_losses() {
        for (reason, cause) in [
            ("node b_1_0 joins again", MembershipCause::Restarted),
            ("node b_1_0 has left the round", MembershipCause::Restarted),
            (
                "node b_1_0 has lost ranks 2, 3 and joins again",
                MembershipCause::Restarted,
            ),
            ("node b_1_0 waits to join", MembershipCause::Waiting),
            (
                "nodes b_1_0, c_2_0 wait to join the next round",
                MembershipCause::Waiting,
            ),
            (
                "nodes b_1_0, c_2_0 are lost (exited without a message)",
                MembershipCause::Lost,
            ),
            ("node b_1_0 has left", MembershipCause::Lost),
        ] {
            assert_eq!(super::cause(reason), cause, "{reason}");
        }
    }
}
