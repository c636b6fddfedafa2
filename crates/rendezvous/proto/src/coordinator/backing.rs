//! Agents that ask whether this coordinator has a majority, and the question to the voters for all of them.

use rdzv_core::ident::ConnId;

/// Questions, as the connection and the agent's number of each.
type Questions = Vec<(ConnId, u64)>;

/// Only a question to the voters that begins after an agent's question has come may answer that; those that come
/// meanwhile wait for the next one.
#[derive(Debug, Default)]
pub(super) struct Backing {
    waiting: Questions,
    asked: Option<(u64, Questions)>,
    /// The number of the last question to the voters.
    last: u64,
}

impl Backing {
    /// That of a coordinator with this number: none of its questions is taken for one of another coordinator's.
    pub(super) fn of_epoch(epoch: u32) -> Self {
        Self {
            last: u64::from(epoch) << 30,
            ..Self::default()
        }
    }

    pub(super) fn ask(&mut self, from: ConnId, number: u64) {
        self.waiting.push((from, number));
    }

    /// The next question to the voters, if one is to be asked now.
    pub(super) fn next(&mut self) -> Option<u64> {
        if self.asked.is_some() || self.waiting.is_empty() {
            return None;
        }
        self.last += 1;
        self.asked = Some((self.last, std::mem::take(&mut self.waiting)));
        Some(self.last)
    }

    /// The voters have answered this question. Returns those whose questions are answered by that.
    pub(super) fn answered(&mut self, token: u64) -> Questions {
        let asked = self.asked.take_if(|(asked, _)| *asked == token);
        asked.map_or_else(Vec::new, |(_, questions)| questions)
    }

    /// A connection is gone; another one may have its number.
    pub(super) fn closed(&mut self, connection: ConnId) {
        self.waiting.retain(|(from, _)| *from != connection);
        if let Some((_, questions)) = &mut self.asked {
            questions.retain(|(from, _)| *from != connection);
        }
    }
}
