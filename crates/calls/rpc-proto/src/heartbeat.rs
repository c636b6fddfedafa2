//! Whether the host at the other end of a connection is still there.
//!
//! What counts are the acknowledgements of the peer's system, which come whatever the peer's
//! process does: a worker that is busy, stopped or in a debugger is not dead. A host without power,
//! or behind a cut link, acknowledges nothing, and says nothing else either.
//!
//! The system sends *probes*, if nothing else is in flight, and this counts what comes of them and
//! of everything else that was sent. A verdict needs that something was sent, that it was
//! unanswered at more than one look, and that nothing was heard for the whole limit.

use std::time::Duration;

use rdzv_core::time::Mono;

/// How long nothing may be heard of a host, if nothing else is said.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(5);

/// The shortest limit there can be: probes are sent once in a second at the most.
pub const SHORTEST_LIMIT: Duration = Duration::from_secs(2);

/// So many looks, and probes, in one limit.
const BEATS: u32 = 5;

const SECOND: Duration = Duration::from_secs(1);

/// Times that are told in milliseconds are the same if they are no further apart.
const BLUR: Duration = Duration::from_millis(50);

/// When a host that says nothing counts as dead, and how often it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    limit: Duration,
    beat: Duration,
}

impl Rhythm {
    /// With this limit, or the shortest there can be.
    pub fn new(limit: Duration) -> Self {
        let limit = limit.max(SHORTEST_LIMIT);
        // Whole seconds, which is what the system counts in.
        let beat = Duration::from_secs(limit.as_secs() / u64::from(BEATS)).max(SECOND);
        Self { limit, beat }
    }

    /// How long nothing may be heard.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The time between two looks, and between two probes; whole seconds.
    pub fn beat(&self) -> Duration {
        self.beat
    }

    /// How many probes may be unanswered until the limit is over.
    pub fn probes(&self) -> u32 {
        let beats = self.limit.as_millis().div_ceil(self.beat.as_millis());
        u32::try_from(beats).unwrap_or(u32::MAX).saturating_sub(1)
    }
}

/// What the system says of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// For how long nothing has been heard, acknowledgements included.
    pub silent: Duration,
    /// How long ago data was sent last, for the first time or again.
    pub sent: Duration,
    /// Whether some of it has not been acknowledged.
    pub unacknowledged: bool,
    /// How many probes have been sent since something was heard.
    pub probes: u32,
}

impl Seen {
    fn is_unanswered(&self) -> bool {
        self.probes > 0 || (self.unacknowledged && self.sent <= self.silent)
    }
}

/// One connection.
#[derive(Debug)]
pub struct Heartbeat {
    rhythm: Rhythm,
    looked: Mono,
    next: Mono,
    /// Since when something is unanswered: it was sent then or, at the most a beat, later.
    unanswered: Option<Mono>,
}

impl Heartbeat {
    /// Of a connection that is good now.
    pub fn new(rhythm: Rhythm, now: Mono) -> Self {
        Self {
            rhythm,
            looked: now,
            next: now + rhythm.beat,
            unanswered: None,
        }
    }

    /// When to look next.
    pub fn next(&self) -> Mono {
        self.next
    }

    /// Takes a look. Says for how long nothing was heard, if that means that the host is gone.
    pub fn look(&mut self, now: Mono, seen: &Seen) -> Option<Duration> {
        let Rhythm { limit, beat } = self.rhythm;
        let before = std::mem::replace(&mut self.looked, now);
        // Who was blind blames nobody.
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
        // A probe that is lost while they are rare, because the peer takes nothing, is no verdict.
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
