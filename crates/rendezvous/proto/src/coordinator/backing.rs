//! Requests from agents to confirm that this coordinator has a majority.
//!
//! One question to the voters answers the requests of many agents.

use rdzv_core::ident::ConnId;

/// Pending requests: the connection and the number of each.
type Questions = Vec<(ConnId, u64)>;

/// Pending requests of agents, and the current question to the voters.
///
/// A question to the voters answers only requests that arrived before it was sent. Later requests
/// wait for the next question.
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
    /// Other coordinators use different question numbers.
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

    /// Processes the voters' answer, and returns the requests that it answers.
    pub(super) fn answered(&mut self, token: u64) -> Questions {
        let asked = self.asked.take_if(|(asked, _)| *asked == token);
        asked.map_or_else(Vec::new, |(_, questions)| questions)
    }

    /// Removes the requests of a closed connection, whose id may be reused.
    pub(super) fn closed(&mut self, connection: ConnId) {
        self.waiting.retain(|(from, _)| *from != connection);
        if let Some((_, questions)) = &mut self.asked {
            questions.retain(|(from, _)| *from != connection);
        }
    }
}
