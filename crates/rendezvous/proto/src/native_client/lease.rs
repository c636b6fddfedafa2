//! An agent's lease: its questions whether the coordinator has a majority, and until when its workers may run.

use std::collections::VecDeque;
use std::time::Duration;

use crate::coordinator::wire::Standing;
use crate::fence;
use rdzv_core::time::Mono;

/// Questions in the time of a lease.
const QUESTIONS: u32 = 4;

/// The same where the coordinator is in the process of its agent. No question and no answer is lost there, and a
/// coordinator that goes takes its agent with it.
const QUESTIONS_IN_PROCESS: u32 = 2;

/// Without an answer for this part of a lease, another coordinator is looked for.
const UNANSWERED: u32 = 3;

/// The lease of an agent that accepts a fence.
#[derive(Debug, Default)]
pub(super) struct Lease {
    node_timeout: Duration,
    /// The last round that has a fence.
    pub(super) fenced: Option<u64>,
    round: u64,
    length: Duration,
    /// The number of the last question.
    last: u64,
    /// Questions without an answer, and when each was sent.
    sent: VecDeque<(u64, Mono)>,
    until: Option<Mono>,
    /// When the next question is due; none without a round.
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

    /// Whether the workers of a round have this lease.
    pub(super) fn is_of_round(&self) -> bool {
        self.due.is_some()
    }

    /// The agent is in no round any more.
    pub(super) fn end(&mut self) {
        self.sent.clear();
        (self.until, self.due) = (None, None);
    }

    /// The next question goes to another coordinator, or over another connection.
    pub(super) fn reconnected(&mut self, now: Mono) {
        self.sent.clear();
        self.due = self.due.map(|_| now);
    }

    /// Whether workers that are to be started have to wait for an answer.
    pub(super) fn is_awaited(&self, now: Mono) -> bool {
        self.due.is_some() && self.until.is_none_or(|until| until <= now)
    }

    /// When to call [`Lease::question`] or [`Lease::unanswered`] next.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let oldest = self.sent.front();
        let search = oldest.map(|(_, sent)| *sent + self.length / UNANSWERED);
        [self.due, search].into_iter().flatten().min()
    }

    /// The question to send now, if it is time to.
    ///
    /// `in_process`: to a coordinator in this process.
    pub(super) fn question(&mut self, now: Mono, in_process: bool) -> Option<(u64, Standing)> {
        self.due.filter(|due| *due <= now)?;
        let questions = match in_process {
            true => QUESTIONS_IN_PROCESS,
            false => QUESTIONS,
        };
        self.due = Some(now + self.length / questions);
        self.last += 1;
        self.sent.push_back((self.last, now));
        let standing = if self.until.is_some_and(|until| until > now) {
            Standing::Holds
        } else {
            Standing::Asks
        };
        Some((self.last, standing))
    }

    /// For how long there was no answer, if that is too long.
    pub(super) fn unanswered(&self, now: Mono) -> Option<Duration> {
        let (_, sent) = self.sent.front()?;
        let elapsed = now.since(*sent);
        (elapsed >= self.length / UNANSWERED).then_some(elapsed)
    }

    /// An answer has come. Returns the round and the end of the lease, if that has moved.
    pub(super) fn answered(&mut self, number: u64) -> Option<(u64, Mono)> {
        let (_, sent) = *self.sent.iter().find(|(known, _)| *known == number)?;
        self.sent.retain(|(known, _)| *known > number);
        // From the question, not from the answer: the answer may have been long on its way.
        self.until = self.until.max(Some(sent + self.length));
        Some((self.round, self.until?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulated world does not notice if this is wrong: heartbeats keep the difference below the margins there.
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
