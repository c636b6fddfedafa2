//! Questions about whether this member still leads.

use std::collections::{BTreeMap, VecDeque};

use raft::{ReadState, StateRole};

use super::Consensus;
use crate::ConsensusRule;
use crate::io::Output;

#[derive(Debug, Default)]
pub(super) struct Questions {
    /// Number of the last question that was sent.
    last: u64,
    /// Token of each question that was sent, by number.
    sent: BTreeMap<u64, u64>,
    /// Tokens of questions that wait for the first commit of the term.
    waiting: VecDeque<u64>,
}

impl Consensus {
    pub(super) fn confirm(&mut self, token: u64) {
        if self.node.raft.state != StateRole::Leader {
            self.outbox.push(Output::Unconfirmed(token));
        } else if !self.follows(ConsensusRule::MajorityConfirms) {
            self.outbox.push(Output::Confirmed(token));
        } else {
            self.questions.waiting.push_back(token);
        }
    }

    /// Sends waiting questions once this leader has committed in its term.
    ///
    /// At other members, the answer to every question is "unconfirmed".
    pub(super) fn ask(&mut self) {
        let questions = &mut self.questions;
        if self.node.raft.state != StateRole::Leader {
            let sent = std::mem::take(&mut questions.sent).into_values();
            for token in sent.chain(questions.waiting.drain(..)) {
                self.outbox.push(Output::Unconfirmed(token));
            }
        } else if self.node.raft.commit_to_current_term() {
            for token in questions.waiting.drain(..) {
                questions.last += 1;
                questions.sent.insert(questions.last, token);
                self.node.read_index(questions.last.to_le_bytes().to_vec());
            }
        }
    }

    pub(super) fn answered(&mut self, answers: Vec<ReadState>) {
        for answer in answers {
            let Ok(number) = <[u8; 8]>::try_from(&answer.request_ctx[..]) else {
                continue;
            };
            if let Some(token) = self.questions.sent.remove(&u64::from_le_bytes(number)) {
                // Every committed entry is applied in the same turn.
                debug_assert!(answer.index <= self.applied());
                self.outbox.push(Output::Confirmed(token));
            }
        }
    }
}
