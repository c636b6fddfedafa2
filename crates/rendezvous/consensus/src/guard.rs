//! Guard that checks each message of a peer before the library sees it.
//!
//! The guard compares a message with the log of this member. The library ends the process when a
//! message contradicts its log. An honest member never sends such a message; an unknown or broken
//! process may. A lie that contradicts nothing passes: members that have proved their membership
//! are trusted.
//!
//! The sender need not be in this member's configuration. The sender may be newer, if this member
//! was cut off. In Raft, members answer candidates and leaders regardless of their configuration.

use std::collections::BTreeSet;

use raft::prelude::{ConfState, EntryType, Message, MessageType, RawNode};

use crate::configuration::{VOTER_INDICES, VoterChange};
use crate::log::Log;
use crate::voter::VoterId;
use crate::wire::NUMBER_BOUND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The library may see the message.
    Pass,
    /// The message is obsolete: drop it.
    Ignore,
    /// An honest member would not send the message, for this reason.
    Refuse(&'static str),
}

/// Checks a message that arrived over the connection of `from`.
///
/// `slack` is 0, except for a guard that is broken on purpose.
pub(crate) fn check(node: &RawNode<Log>, from: VoterId, message: &Message, slack: u64) -> Verdict {
    if message.from != from.number() {
        return Verdict::Refuse("it names another sender than the connection");
    }
    if message.to != node.raft.id {
        return Verdict::Refuse("it is for another member");
    }
    if message.from == message.to {
        return Verdict::Refuse("it comes from this member itself");
    }
    if message.term == 0 {
        return Verdict::Refuse("it has no term");
    }
    // The library answers or ignores an old message, whatever it contains.
    if message.term < node.raft.term {
        return Verdict::Pass;
    }
    let fault = match message.msg_type {
        MessageType::MsgAppend => append(node, message),
        MessageType::MsgHeartbeat if message.commit > node.store().last() + slack => {
            Some("it commits more than this member has")
        }
        MessageType::MsgSnapshot => snapshot(node, message),
        MessageType::MsgAppendResponse => acknowledgement(node, message),
        MessageType::MsgTimeoutNow
            if message.term > node.raft.term || message.from != node.raft.leader_id =>
        {
            return Verdict::Ignore;
        }
        _ => None,
    };
    fault.map_or(Verdict::Pass, Verdict::Refuse)
}

fn append(node: &RawNode<Log>, message: &Message) -> Option<&'static str> {
    let log = &node.raft.raft_log;
    let committed = log.committed;
    if message.index + message.entries.len() as u64 >= NUMBER_BOUND {
        return Some("its entries have no index");
    }
    let mut term = message.log_term;
    for entry in message.entries.iter() {
        if entry.term < term || entry.term > message.term {
            return Some("the terms of its entries are not in order");
        }
        term = entry.term;
        if entry.get_entry_type() != EntryType::EntryNormal
            && VoterChange::read(&entry.context).is_none()
        {
            return Some("a change of members cannot be read");
        }
    }
    // The library answers such a message only with its committed index.
    if message.index < committed {
        return None;
    }
    let committed_term = log.term(committed).unwrap_or(0);
    if message.log_term < committed_term
        || message.index == committed && message.log_term != committed_term
    {
        return Some("it contradicts what is committed");
    }
    None
}

fn acknowledgement(node: &RawNode<Log>, message: &Message) -> Option<&'static str> {
    if message.term > node.raft.term {
        return None;
    }
    let last = node.store().last();
    // A rejection names the requested index. This member may have lost that entry with an earlier
    // term.
    (!message.reject && message.index > last).then_some("it acknowledges more than was sent")
}

fn snapshot(node: &RawNode<Log>, message: &Message) -> Option<&'static str> {
    let log = &node.raft.raft_log;
    let metadata = message.get_snapshot().get_metadata();
    if metadata.index == 0 || metadata.term == 0 || metadata.term > message.term {
        return Some("its snapshot has no index or no term");
    }
    if metadata.index > log.committed && metadata.term < log.term(log.committed).unwrap_or(0) {
        return Some("its snapshot contradicts what is committed");
    }
    let conf_state = metadata.get_conf_state();
    if is_consistent(conf_state, node.raft.id) {
        None
    } else {
        Some("the configuration of its snapshot contradicts itself, or does not have this member")
    }
}

/// `true` if a configuration follows the library's rules and contains `own`.
fn is_consistent(conf_state: &ConfState, own: u64) -> bool {
    let set = |members: &[u64]| members.iter().copied().collect::<BTreeSet<u64>>();
    let voters = set(&conf_state.voters);
    let outgoing = set(&conf_state.voters_outgoing);
    let learners = set(&conf_state.learners);
    let next = set(&conf_state.learners_next);
    let lists = [
        (&conf_state.voters, &voters),
        (&conf_state.voters_outgoing, &outgoing),
        (&conf_state.learners, &learners),
        (&conf_state.learners_next, &next),
    ];
    let members: BTreeSet<u64> = voters.union(&outgoing).copied().collect();
    !voters.is_empty()
        && lists.iter().all(|(list, set)| list.len() == set.len())
        && members.len() + learners.len() <= 2 * usize::from(VOTER_INDICES)
        && learners.is_disjoint(&members)
        && next.is_subset(&outgoing)
        && next.is_disjoint(&voters)
        && (!outgoing.is_empty() || !conf_state.auto_leave)
        && (members.contains(&own) || learners.contains(&own))
}
