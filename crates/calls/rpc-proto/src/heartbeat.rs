//! Detection of a lost host at the other end of a connection.
//!
//! The acknowledgements of the peer's operating system count. They arrive whatever the peer's
//! process does: a worker that is busy, stopped or in a debugger is not dead. A host without power,
//! or behind a cut link, acknowledges nothing.
//!
//! The system sends *probes* if nothing else is in flight. This module evaluates the answers to the
//! probes and to all other data. It reports a loss only under three conditions. Data or a probe was
//! sent, it was unanswered at more than one poll, and nothing arrived during the whole limit.

use std::time::Duration;

use rdzv_core::time::Mono;

/// Default limit of a host's silence.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(5);

/// Minimum limit: the system sends at most one probe per second.
pub const SHORTEST_LIMIT: Duration = Duration::from_secs(2);

/// Minimum number of polls in a limit of at least 5 s.
const BEATS: u32 = 5;

const SECOND: Duration = Duration::from_secs(1);

/// Tolerance for comparing times that the system reports in milliseconds.
const BLUR: Duration = Duration::from_millis(50);

/// Silence after which a host is lost, and intervals of polls and probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    limit: Duration,
    beat: Duration,
}

impl Rhythm {
    /// Creates the rhythm for this limit, or for the minimum if that is larger.
    pub fn new(limit: Duration) -> Self {
        let limit = limit.max(SHORTEST_LIMIT);
        // Whole seconds, the unit of the operating system.
        let beat = Duration::from_secs(limit.as_secs() / u64::from(BEATS)).max(SECOND);
        Self { limit, beat }
    }

    /// Returns the limit of the silence.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the usual time between two polls or probes; whole seconds.
    pub fn beat(&self) -> Duration {
        self.beat
    }

    /// Returns the number of unanswered probes within the limit.
    pub fn probes(&self) -> u32 {
        let beats = self.limit.as_millis().div_ceil(self.beat.as_millis());
        u32::try_from(beats).unwrap_or(u32::MAX).saturating_sub(1)
    }
}

/// Report of the operating system about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Time since the last arrival, acknowledgements included.
    pub silent: Duration,
    /// Time since data was sent or retransmitted last.
    pub sent: Duration,
    /// `true` if some data has not been acknowledged.
    pub unacknowledged: bool,
    /// Number of probes since the last arrival.
    pub probes: u32,
}

impl Seen {
    fn is_unanswered(&self) -> bool {
        self.probes > 0 || (self.unacknowledged && self.sent <= self.silent)
    }
}

/// Heartbeat of one connection.
#[derive(Debug)]
pub struct Heartbeat {
    rhythm: Rhythm,
    looked: Mono,
    next: Mono,
    /// Time since which data counts as unanswered.
    ///
    /// This is the time of the poll before the one that found the data. If the latter poll was
    /// late, it is the time of that poll.
    unanswered: Option<Mono>,
}

impl Heartbeat {
    /// Creates the heartbeat of a connection that works now.
    pub fn new(rhythm: Rhythm, now: Mono) -> Self {
        Self {
            rhythm,
            looked: now,
            next: now + rhythm.beat,
            unanswered: None,
        }
    }

    /// Returns the time of the next poll.
    pub fn next(&self) -> Mono {
        self.next
    }

    /// Evaluates a poll, and returns the silence if the host counts as lost.
    pub fn look(&mut self, now: Mono, seen: &Seen) -> Option<Duration> {
        let Rhythm { limit, beat } = self.rhythm;
        let before = std::mem::replace(&mut self.looked, now);
        // If this side did not poll in time, it reports no loss.
        let was_blind = now - before > 3 * beat;
        let heard_since = |at: Mono| seen.silent + BLUR < now - at;
        if was_blind || !seen.is_unanswered() || self.unanswered.is_some_and(heard_since) {
            self.unanswered = None;
        }
        self.next = now + beat;
        if !seen.is_unanswered() {
            return None;
        }
        let Some(since) = self.unanswered else {
            self.unanswered = Some(if was_blind { now } else { before });
            self.wake_at_the_limit(now, seen.silent);
            return None;
        };
        // If the peer accepts no data, probes may be rare, and a single lost probe proves nothing.
        let is_sure = seen.unacknowledged || seen.probes >= 2;
        if is_sure && seen.silent >= limit && now - since >= limit.saturating_sub(2 * beat) {
            return Some(seen.silent);
        }
        self.wake_at_the_limit(now, seen.silent);
        None
    }

    fn wake_at_the_limit(&mut self, now: Mono, silent: Duration) {
        let left = self.rhythm.limit.saturating_sub(silent);
        if !left.is_zero() {
            self.next = self.next.min(now + left);
        }
    }
}

#[cfg(test)]
mod tests;
