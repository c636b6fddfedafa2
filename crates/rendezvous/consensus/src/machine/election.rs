//! Standing for election without waiting for the timeout, and for how long voters had heard from nobody.

use std::time::Duration;

use rdzv_core::time::Mono;

use crate::voter::VoterId;

/// The time by which a member stands for election later than the one of the place before. On a machine with more to do than it can,
/// that one may notice late that the leader is gone; or one that notices later has refused its vote, and it has asked again by
/// then.
const PLACE: Duration = Duration::from_millis(30);

/// Until the others notice that the leader is gone too, a vote is asked for again and again, and after a split vote.
const AGAIN: Duration = Duration::from_millis(25);

/// After that, the timeout decides.
const AT_MOST: Duration = Duration::from_millis(500);

/// The most multiples of its place that a member waits. Beyond that the waits of neighbours differ by more than clocks
/// do, and longer waits would only delay.
const MULTIPLES: u64 = 6;

/// No member waits for so many ticks.
pub(super) const TICKS_BOUND: usize =
    super::ELECTION_TICKS + MULTIPLES as usize * (u8::MAX as usize) + 1;

#[derive(Debug, Default)]
pub(super) struct Election {
    place: u8,
    /// The last term in which this member knew a leader.
    led: u64,
    /// When to stand for election next, and until when.
    due: Option<(Mono, Mono)>,
    /// Those who stand before this member, in the order of places.
    before: Vec<VoterId>,
    /// When this member last heard from a leader.
    heard: Option<Mono>,
    /// The newest moment at which a voter that granted its vote had, and the term of the vote.
    granted: (u64, Option<Mono>),
}

impl Election {
    pub(super) fn new(place: u8) -> Self {
        Self {
            place,
            ..Self::default()
        }
    }

    /// Stand for election after these members.
    pub(super) fn begin(&mut self, now: Mono, before: Vec<VoterId>) {
        self.before = before;
        self.due = Some((now + self.later(), now + AT_MOST));
    }

    /// The place of this member in a configuration that came into force.
    pub(super) fn set_place(&mut self, place: u8) {
        self.place = place;
    }

    /// A term has a leader.
    pub(super) fn has_leader(&mut self, term: u64) {
        self.led = self.led.max(term);
    }

    /// The ticks after which this member stands for election in a term, if it hears of no leader: 16 and its place.
    ///
    /// A term without a leader is one of a split vote. Clocks differ, so two members whose waits
    /// differ by one tick may stand at the same moment in every term. Each such term adds the place
    /// once more, and the waits move apart.
    pub(super) fn ticks(&self, term: u64) -> usize {
        let failed = term.saturating_sub(self.led);
        let multiples = (1 + failed).min(MULTIPLES) as usize;
        super::ELECTION_TICKS + multiples * usize::from(self.place)
    }

    pub(super) fn is_due(&self, now: Mono) -> bool {
        self.due.is_some_and(|(due, _)| due <= now)
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.due.map(|(due, _)| due)
    }

    /// By how much this member waits longer than the first one.
    fn later(&self) -> Duration {
        PLACE * u32::try_from(self.before.len()).unwrap_or(u32::MAX)
    }

    /// Whether another one stands before this member.
    pub(super) fn stands_before(&self, other: VoterId) -> bool {
        self.before.contains(&other)
    }

    /// Stand again in a while, unless it was tried for long: after this member has stood, or has granted another one its vote.
    pub(super) fn again(&mut self, now: Mono) {
        let next = now + AGAIN + self.later();
        self.due = self.due.map(|(_, until)| (next, until));
        self.due = self.due.filter(|(due, until)| due <= until);
    }

    pub(super) fn end(&mut self) {
        self.before.clear();
        self.due = None;
    }

    /// A leader has been heard from, or this member has led until now.
    pub(super) fn heard(&mut self, now: Mono) {
        self.heard = Some(now);
    }

    /// For how long no leader was heard from.
    pub(super) fn silence(&self, now: Mono) -> Option<Duration> {
        self.heard.map(|heard| now - heard)
    }

    /// A vote of this term was granted by a member that had not heard from a leader for `silence`.
    pub(super) fn granted(&mut self, now: Mono, term: u64, silence: Option<Duration>) {
        if self.granted.0 != term {
            self.granted = (term, None);
        }
        // The answer took a while, so the moment is a little too late rather than too early.
        let heard = silence.map(|silence| Mono::ZERO + now.since(Mono::ZERO + silence));
        self.granted.1 = self.granted.1.max(heard);
    }

    /// This member leads in a term: the newest moment at which one of its voters had heard from a leader.
    pub(super) fn won(&self, term: u64) -> Option<Mono> {
        let others = self.granted.1.filter(|_| self.granted.0 == term);
        self.heard.max(others)
    }
}
