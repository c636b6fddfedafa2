//! The lease of an agent, and the questions that renew it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::coordinator::wire::Standing;
use crate::fence;
use rdzv_core::time::{Mono, earliest};

/// Number of questions during a lease.
const QUESTIONS: u32 = 4;

/// Number of questions during a lease with a coordinator in the same process.
///
/// Within one process, no question or answer is lost, and agent and coordinator end together.
const QUESTIONS_IN_PROCESS: u32 = 2;

/// Divisor of the lease for the time without an answer before a search.
///
/// The agent then searches for another coordinator.
const UNANSWERED: u32 = 3;

/// The lease of an agent, which only a round with a fence starts.
#[derive(Debug, Default)]
pub(super) struct Lease {
    node_timeout: Duration,
    /// The last round that has a fence.
    pub(super) fenced: Option<u64>,
    round: u64,
    length: Duration,
    /// Number of the last question.
    last: u64,
    /// Numbers and times of the questions without an answer.
    sent: VecDeque<(u64, Mono)>,
    end: Option<Mono>,
    /// Time of the next question; `None` without a round that has a fence.
    pub(super) due: Option<Mono>,
}

impl Lease {
    pub(super) fn new(node_timeout: Duration) -> Self {
        Self {
            node_timeout,
            length: node_timeout,
            ..Self::default()
        }
    }

    /// Starts the leases of a round of this many agents.
    pub(super) fn begin(&mut self, now: Mono, round: u64, agents: u32) {
        self.end();
        self.round = round;
        self.length = fence::lease(self.node_timeout, agents);
        self.due = Some(now);
    }

    /// `true` if the agent is in a round with a fence, and asks for its lease.
    pub(super) fn is_of_round(&self) -> bool {
        self.due.is_some()
    }

    pub(super) fn end(&mut self) {
        self.sent.clear();
        (self.end, self.due) = (None, None);
    }

    /// Makes the next question due immediately, over a new connection.
    pub(super) fn reconnected(&mut self, now: Mono) {
        self.sent.clear();
        self.due = self.due.map(|_| now);
    }

    /// `true` if the start of workers has to wait for an answer.
    pub(super) fn is_awaited(&self, now: Mono) -> bool {
        self.due.is_some() && self.end.is_none_or(|end| end <= now)
    }

    /// Returns the time of the next [`Lease::question`] or [`Lease::unanswered`].
    pub(super) fn deadline(&self) -> Option<Mono> {
        let oldest = self.sent.front();
        let search = oldest.map(|(_, sent)| *sent + self.length / UNANSWERED);
        earliest([self.due, search])
    }

    /// Returns the question to send now, if one is due.
    ///
    /// `in_process` is `true` if the coordinator is in this process.
    pub(super) fn question(&mut self, now: Mono, in_process: bool) -> Option<(u64, Standing)> {
        self.due.filter(|due| *due <= now)?;
        let questions = if in_process {
            QUESTIONS_IN_PROCESS
        } else {
            QUESTIONS
        };
        self.due = Some(now + self.length / questions);
        self.last += 1;
        self.sent.push_back((self.last, now));
        let standing = if self.end.is_some_and(|end| end > now) {
            Standing::Holds
        } else {
            Standing::Asks
        };
        Some((self.last, standing))
    }

    /// Returns the time without an answer, if it is too long.
    pub(super) fn unanswered(&self, now: Mono) -> Option<Duration> {
        let (_, sent) = self.sent.front()?;
        let elapsed = now.since(*sent);
        (elapsed >= self.length / UNANSWERED).then_some(elapsed)
    }

    /// Handles an answer, and returns the round and the new end of its lease.
    ///
    /// `None` if the question is not waiting for an answer.
    pub(super) fn answered(&mut self, number: u64) -> Option<(u64, Mono)> {
        let (_, sent) = *self.sent.iter().find(|(known, _)| *known == number)?;
        self.sent.retain(|(known, _)| *known > number);
        // The lease counts from the question, because the answer may have taken long.
        self.end = self.end.max(Some(sent + self.length));
        Some((self.round, self.end?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulation does not detect a lease that counts from the answer.
    ///
    /// There, heartbeats keep the difference below the margins.
    #[test]
    fn a_lease_counts_from_the_question() {
        let at = |seconds| Mono::ZERO + Duration::from_secs(seconds);
        let mut lease = Lease::new(Duration::from_secs(3));
        lease.begin(at(10), 7, 2);
        let (number, standing) = lease.question(at(10), false).unwrap();
        assert_eq!(standing, Standing::Asks);
        let length = fence::lease(Duration::from_secs(3), 2);
        assert_eq!(lease.answered(number), Some((7, at(10) + length)));
        assert_eq!(lease.answered(number), None, "answered twice");
    }
}
