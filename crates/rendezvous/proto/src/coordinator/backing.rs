//! Agents that ask if this coordinator has a majority.
//!
//! One question to the voters answers all of them.

use rdzv_core::ident::ConnId;

/// Questions: the connection of each, and the agent's number for it.
type Questions = Vec<(ConnId, u64)>;

/// Questions of agents, and the question to the voters that is under way.
///
/// A question to the voters answers only questions of agents that came before it began. Later
/// questions wait for the next one.
#[derive(Debug, Default)]
pub(super) struct Backing {
    waiting: Questions,
    asked: Option<(u64, Questions)>,
    /// Number of the last question to the voters.
    last: u64,
}

impl Backing {
    /// Creates the state for a coordinator of this epoch.
    ///
    /// Its numbers cannot be mistaken for those of another coordinator.
    pub(super) fn of_epoch(epoch: u32) -> Self {
        Self {
            last: u64::from(epoch) << 30,
            ..Self::default()
        }
    }

    pub(super) fn ask(&mut self, from: ConnId, number: u64) {
        self.waiting.push((from, number));
    }

    /// Returns the number of the next question to the voters, if one is due.
    pub(super) fn next(&mut self) -> Option<u64> {
        if self.asked.is_some() || self.waiting.is_empty() {
            return None;
        }
        self.last += 1;
        self.asked = Some((self.last, std::mem::take(&mut self.waiting)));
        Some(self.last)
    }

    /// Takes the voters' answer over, and returns the questions that it answers.
    pub(super) fn answered(&mut self, token: u64) -> Questions {
        let asked = self.asked.take_if(|(asked, _)| *asked == token);
        asked.map_or_else(Vec::new, |(_, questions)| questions)
    }

    /// Forgets a closed connection, because another one may get its number.
    pub(super) fn closed(&mut self, connection: ConnId) {
        self.waiting.retain(|(from, _)| *from != connection);
        if let Some((_, questions)) = &mut self.asked {
            questions.retain(|(from, _)| *from != connection);
        }
    }
}
