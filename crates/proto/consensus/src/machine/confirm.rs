//! Questions whether this member still leads.

use std::collections::{BTreeMap, VecDeque};

use raft::{ReadState, StateRole};

use super::Consensus;
use crate::io::Output;
use crate::is_broken;

#[derive(Debug, Default)]
pub(super) struct Questions {
    /// The number of the last question that was sent.
    last: u64,
    /// The tokens of each question that was sent.
    sent: BTreeMap<u64, Vec<u64>>,
    /// Tokens of questions that wait for the first commit of the term.
    waiting: VecDeque<u64>,
    /// Tokens of questions that wait for the next heartbeat.
    with_heartbeat: VecDeque<u64>,
}

impl Questions {
    /// A heartbeat is sent.
    pub(super) fn heartbeat(&mut self) {
        self.waiting.append(&mut self.with_heartbeat);
    }
}

impl Consensus {
    pub(super) fn confirm(&mut self, token: u64, at_once: bool) {
        if self.node.raft.state != StateRole::Leader {
            self.outbox.push(Output::Unconfirmed(token));
        } else if is_broken!(self.settings, ConfirmsAlone) {
            self.outbox.push(Output::Confirmed(token));
        } else {
            match at_once {
                true => self.questions.waiting.push_back(token),
                false => self.questions.with_heartbeat.push_back(token),
            }
        }
    }

    /// Sends what waits, if this member may answer by now; or says that nothing comes of it.
    pub(super) fn ask(&mut self) {
        let questions = &mut self.questions;
        if self.node.raft.state != StateRole::Leader {
            questions.heartbeat();
            let sent = std::mem::take(&mut questions.sent).into_values().flatten();
            for token in sent.chain(questions.waiting.drain(..)) {
                self.outbox.push(Output::Unconfirmed(token));
            }
        } else if self.node.raft.commit_to_current_term() {
            if questions.waiting.is_empty() {
                return;
            }
            questions.last += 1;
            let waiting = questions.waiting.drain(..).collect();
            questions.sent.insert(questions.last, waiting);
            self.node.read_index(questions.last.to_le_bytes().to_vec());
        }
    }

    pub(super) fn answered(&mut self, answers: Vec<ReadState>) {
        for answer in answers {
            let Ok(number) = <[u8; 8]>::try_from(&answer.request_ctx[..]) else {
                continue;
            };
            // Whatever is committed is applied in the same turn.
            debug_assert!(answer.index <= self.applied());
            let tokens = self.questions.sent.remove(&u64::from_le_bytes(number));
            for token in tokens.into_iter().flatten() {
                self.outbox.push(Output::Confirmed(token));
            }
        }
    }
}
