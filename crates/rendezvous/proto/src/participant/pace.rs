//! When to ask the store, so that many agents who want to write the same value do not do so at once.
//!
//! A write loses if somebody else's won since the last read, so with many writers at once most of
//! the work is lost. Retrying without a pause makes it worse with every agent. Here whoever loses
//! waits for a random part of a window that doubles with every loss and reads again before the next
//! try; and where it is known beforehand that many will write (a round ended, and all of them
//! come), each takes a random place in the time that all of them need.

use std::time::Duration;

use fastrand::Rng;

use rdzv_core::time::Mono;

/// An agent's first join waits a random part of this, because agents are started together.
const FIRST_JOIN: Duration = Duration::from_millis(300);

/// The longest window; short enough for a heartbeat to get through in time.
const LONGEST_WINDOW: Duration = Duration::from_secs(2);

/// Half the window of a node that was removed by others for the first time.
const FIRST_EXPELLED: Duration = Duration::from_millis(20);

/// The slowest answer that says something about the next one.
const SLOWEST: Duration = Duration::from_millis(250);

/// Up to so many writers a collision costs less than avoiding it.
const FEW: usize = 4;

/// Most that is waited between two reads because the state changed.
const LONGEST_GAP: Duration = Duration::from_secs(1);

/// The pace of one agent.
#[derive(Debug)]
pub(super) struct Pace {
    random: Rng,
    /// The setting; zero if it is left to us.
    backoff_max: Duration,
    /// How long the store takes to answer, smoothed.
    round_trip: Duration,
    asked_at: Mono,
    /// Writes lost in a row.
    losses: u32,
    /// Times that others removed us since we last joined.
    expelled: u32,
}

impl Pace {
    pub(super) fn new(seed: u64, backoff_max: Duration) -> Self {
        Self {
            random: Rng::with_seed(seed),
            backoff_max,
            round_trip: Duration::from_millis(1),
            asked_at: Mono::ZERO,
            losses: 0,
            expelled: 0,
        }
    }

    pub(super) fn asked(&mut self, now: Mono) {
        self.asked_at = now;
    }

    pub(super) fn answered(&mut self, now: Mono) {
        let took = now.since(self.asked_at).min(SLOWEST);
        self.round_trip = (self.round_trip * 3 + took) / 4;
    }

    pub(super) fn won(&mut self) {
        self.losses = 0;
    }

    /// How long to wait after a lost write. Who is `urgent` does not wait: of those who try again at
    /// once with what they were answered one wins in every round trip, which is the most that the
    /// store can do.
    pub(super) fn lost(&mut self, urgent: bool) -> Duration {
        self.losses = self.losses.saturating_add(1);
        let window = if self.backoff_max > Duration::ZERO {
            self.backoff_max
        } else if urgent {
            Duration::ZERO
        } else {
            let factor = 1_u32 << self.losses.min(16);
            self.round_trip.saturating_mul(factor).min(LONGEST_WINDOW)
        };
        self.part_of(window)
    }

    /// How long to wait before joining again after others have removed us, so that agents whose
    /// clocks do not agree do not remove and add one another without end and without a pause.
    pub(super) fn expelled(&mut self) -> Duration {
        self.expelled = self.expelled.saturating_add(1);
        let window = FIRST_EXPELLED.saturating_mul(1 << self.expelled.min(16));
        self.part_of(window.min(LONGEST_WINDOW))
    }

    pub(super) fn joined(&mut self) {
        self.expelled = 0;
    }

    /// Whether more than one write was lost in a row.
    pub(super) fn is_crowded(&self) -> bool {
        self.losses > 1
    }

    pub(super) fn first_join(&mut self) -> Duration {
        self.part_of(FIRST_JOIN)
    }

    /// How long to wait before a write that so many agents are about to try.
    pub(super) fn place_among(&mut self, writers: usize) -> Option<Duration> {
        if writers <= FEW {
            return None;
        }
        let factor = u32::try_from(writers).unwrap_or(u32::MAX);
        let window = self.round_trip.saturating_mul(factor).min(LONGEST_WINDOW);
        Some(self.part_of(window))
    }

    fn part_of(&mut self, window: Duration) -> Duration {
        window.mul_f64(self.random.f64())
    }
}

/// How long after a read the next one waits although the state has changed meanwhile: with `nodes`
/// agents that all read after every write, the store would do little else. Who is in a complete
/// round, where most writes are heartbeats, waits longer.
pub(super) fn gap(nodes: usize, in_round: bool) -> Duration {
    let each = Duration::from_millis(if in_round { 10 } else { 1 });
    each.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX))
        .min(LONGEST_GAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_losses_and_is_bounded() {
        let mut pace = Pace::new(1, Duration::ZERO);
        let most = |pace: &mut Pace, losses: u32| {
            (0..200)
                .map(|_| {
                    pace.losses = losses - 1;
                    pace.lost(false)
                })
                .max()
                .unwrap()
        };
        assert!(most(&mut pace, 1) <= Duration::from_millis(2));
        assert!(most(&mut pace, 5) > Duration::from_millis(20));
        assert!(most(&mut pace, 5) <= Duration::from_millis(32));
        assert!(most(&mut pace, u32::MAX) <= LONGEST_WINDOW);
    }

    #[test]
    fn who_is_urgent_does_not_wait() {
        let mut pace = Pace::new(1, Duration::ZERO);
        assert!((0..20).all(|_| pace.lost(true) == Duration::ZERO));
    }

    #[test]
    fn the_setting_is_obeyed() {
        let mut pace = Pace::new(1, Duration::from_millis(5));
        let waits: Vec<_> = (0..500).map(|_| pace.lost(false)).collect();
        assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(5)));
        assert!(waits.iter().any(|wait| *wait > Duration::from_millis(4)));
    }

    #[test]
    fn few_writers_do_not_wait_for_one_another() {
        let mut pace = Pace::new(1, Duration::ZERO);
        assert_eq!(pace.place_among(4), None);
        assert!(pace.place_among(100).unwrap() <= Duration::from_millis(100));
    }
}
