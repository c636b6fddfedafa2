//! Agents that ask whether this coordinator has a majority, and the questions to the voters for all of them.

use std::collections::BTreeMap;

use rdzv_core::ident::ConnId;

/// A question of an agent: its connection, and the agent's number of it.
type Question = (ConnId, u64);

/// Only a question to the voters that begins after an agent's question has come may answer that. Those that cannot wait are asked
/// together, and those that come meanwhile wait for the next one. Each of the others is passed on, to be asked with the next heartbeat.
#[derive(Debug, Default)]
pub(super) struct Backing {
    waiting: Vec<Question>,
    asked: Option<(u64, Vec<Question>)>,
    with_heartbeat: BTreeMap<u64, Question>,
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

    /// An agent asks, and cannot wait.
    pub(super) fn ask(&mut self, question: Question) {
        self.waiting.push(question);
    }

    /// An agent asks. Returns the question to the voters, which they are to be asked with the next heartbeat.
    pub(super) fn ask_with_heartbeat(&mut self, question: Question) -> u64 {
        self.last += 1;
        self.with_heartbeat.insert(self.last, question);
        self.last
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

    /// The voters have answered this question. Returns those that are answered by that.
    pub(super) fn answered(&mut self, token: u64) -> Vec<Question> {
        if let Some(question) = self.with_heartbeat.remove(&token) {
            return vec![question];
        }
        let asked = self.asked.take_if(|(asked, _)| *asked == token);
        asked.map_or_else(Vec::new, |(_, questions)| questions)
    }

    /// A connection is gone; another one may have its number.
    pub(super) fn closed(&mut self, connection: ConnId) {
        let stays = |(from, _): &Question| *from != connection;
        self.waiting.retain(stays);
        self.with_heartbeat.retain(|_, question| stays(question));
        if let Some((_, questions)) = &mut self.asked {
            questions.retain(stays);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_cannot_wait_are_asked_together_and_do_not_wait_for_those_that_can() {
        let mut backing = Backing::default();
        let (a, b, c) = (ConnId(1), ConnId(2), ConnId(3));
        assert_eq!(backing.ask_with_heartbeat((a, 10)), 1);
        assert_eq!(backing.next(), None);
        backing.ask((b, 20));
        assert_eq!(backing.next(), Some(2));
        backing.ask((b, 21));
        backing.ask((c, 30));
        assert_eq!(backing.next(), None, "the voters are being asked");
        assert_eq!(backing.answered(2), [(b, 20)]);
        assert_eq!(backing.next(), Some(3));
        assert_eq!(backing.answered(1), [(a, 10)]);
        assert_eq!(backing.answered(1), []);
        backing.closed(b);
        assert_eq!(backing.answered(3), [(c, 30)]);
    }
}
