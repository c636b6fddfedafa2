//! Leader election: campaigns that start before the election timeout.
//!
//! The module also tracks the time since voters last received from a leader.

use std::time::Duration;

use rdzv_core::time::Mono;

use crate::voter::VoterId;

/// Additional campaign delay for each voter that campaigns earlier.
///
/// On an overloaded machine, the previous member may notice the loss of the leader late. Or another
/// member has refused its vote, and the previous member has to ask again.
const DELAY_PER_INDEX: Duration = Duration::from_millis(30);

/// Retry interval for votes.
///
/// Other members may not have noticed the loss of the leader yet, or a vote was split.
const AGAIN: Duration = Duration::from_millis(25);

/// Time limit for early campaigns; after it, the timeout decides.
const AT_MOST: Duration = Duration::from_millis(500);

/// Maximum multiple of its voter index that a member waits.
///
/// Beyond it, the waits of neighbours differ by more than clocks do, and longer waits would only
/// delay.
const MULTIPLES: u64 = 6;

/// Number of ticks that exceeds the wait of every member.
pub(super) const TICKS_BOUND: usize =
    super::ELECTION_TICKS + MULTIPLES as usize * (u8::MAX as usize) + 1;

#[derive(Debug, Default)]
pub(super) struct Election {
    voter_index: u8,
    /// Last term in which this member knew a leader.
    led: u64,
    /// Time of the next campaign, and time of the last possible one.
    due: Option<(Mono, Mono)>,
    /// Members that campaign before this one, in the order of voter indexes.
    before: Vec<VoterId>,
    /// Time of the last message from a leader, or end of this member's leadership.
    heard: Option<Mono>,
    /// Term of the granted votes, and those voters' newest contact with a leader.
    granted: (u64, Option<Mono>),
}

impl Election {
    pub(super) fn new(voter_index: u8) -> Self {
        Self {
            voter_index,
            ..Self::default()
        }
    }

    /// Schedules a campaign after the campaigns of the members in `before`.
    pub(super) fn begin(&mut self, now: Mono, before: Vec<VoterId>) {
        self.before = before;
        self.due = Some((now + self.later(), now + AT_MOST));
    }

    /// Sets the voter index of this member in a configuration that came into force.
    pub(super) fn set_voter_index(&mut self, voter_index: u8) {
        self.voter_index = voter_index;
    }

    pub(super) fn has_leader(&mut self, term: u64) {
        self.led = self.led.max(term);
    }

    /// Returns the ticks without a leader after which this member campaigns.
    ///
    /// The number is 16 plus the voter index. A term without a leader is the result of a split
    /// vote. Clocks differ, so two members whose waits differ by one tick may campaign at the same
    /// time in every term. Each such term adds the index once more, and the waits move apart.
    pub(super) fn ticks(&self, term: u64) -> usize {
        let failed = term.saturating_sub(self.led);
        let multiples = (1 + failed).min(MULTIPLES) as usize;
        super::ELECTION_TICKS + multiples * usize::from(self.voter_index)
    }

    pub(super) fn is_due(&self, now: Mono) -> bool {
        self.due.is_some_and(|(due, _)| due <= now)
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.due.map(|(due, _)| due)
    }

    /// Returns this member's delay after the first member's campaign.
    fn later(&self) -> Duration {
        DELAY_PER_INDEX * u32::try_from(self.before.len()).unwrap_or(u32::MAX)
    }

    /// `true` if the other member campaigns before this one.
    pub(super) fn stands_before(&self, other: VoterId) -> bool {
        self.before.contains(&other)
    }

    /// Schedules the next campaign, until the time limit is over.
    ///
    /// Called when this member campaigns or grants its vote.
    pub(super) fn again(&mut self, now: Mono) {
        let next = now + AGAIN + self.later();
        self.due = self.due.map(|(_, deadline)| (next, deadline));
        self.due = self.due.filter(|(due, deadline)| due <= deadline);
    }

    pub(super) fn end(&mut self) {
        self.before.clear();
        self.due = None;
    }

    /// Records contact with a leader, or the end of this member's leadership.
    pub(super) fn heard(&mut self, now: Mono) {
        self.heard = Some(now);
    }

    /// Returns the time since the last contact with a leader.
    pub(super) fn silence(&self, now: Mono) -> Option<Duration> {
        self.heard.map(|heard| now - heard)
    }

    /// Records a vote of this term.
    ///
    /// `silence` is the time since the voter last received from a leader.
    pub(super) fn granted(&mut self, now: Mono, term: u64, silence: Option<Duration>) {
        if self.granted.0 != term {
            self.granted = (term, None);
        }
        // The answer took some time. The computed time is therefore a little too late, never too
        // early.
        let heard = silence.map(|silence| Mono::ZERO + now.since(Mono::ZERO + silence));
        self.granted.1 = self.granted.1.max(heard);
    }

    /// Returns the newest contact of this leader's voters with an earlier leader.
    pub(super) fn won(&self, term: u64) -> Option<Mono> {
        let others = self.granted.1.filter(|_| self.granted.0 == term);
        self.heard.max(others)
    }
}
