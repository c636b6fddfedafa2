//! Pauses between accesses to the store, so that agents do not write together.
//!
//! A write fails if another agent has written since the last read. With many simultaneous writers,
//! most of the work is lost. Retries without a pause make this worse with every agent. So after a
//! lost write, an agent usually waits for a random part of a window. Unless a setting fixes the
//! window, it doubles with every loss, up to a limit. After the end of a round, for example, many
//! agents are about to write. Then each agent picks a random moment in the time that all of them
//! need.

use std::time::Duration;

use fastrand::Rng;

use rdzv_core::time::Mono;

/// Window of the random delay before the first join of an agent.
///
/// Agents are often started at the same time.
const FIRST_JOIN: Duration = Duration::from_millis(300);

/// Longest automatic window, which is short enough for heartbeats in time.
const LONGEST_WINDOW: Duration = Duration::from_secs(2);

/// Half the window of a node that other nodes have removed for the first time.
const FIRST_EXPELLED: Duration = Duration::from_millis(20);

/// Upper bound for a measured round trip; slower answers count as this long.
const SLOWEST: Duration = Duration::from_millis(250);

/// Maximum number of writers for which a collision costs less than a pause.
const FEW: usize = 4;

/// Maximum time between two reads of a state that changes.
const LONGEST_GAP: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Pace {
    random: Rng,
    /// Maximum pause from the settings; zero for automatic pauses.
    backoff_max: Duration,
    /// Smoothed time between a request to the store and its answer.
    round_trip: Duration,
    asked_at: Mono,
    /// Number of consecutive lost writes.
    losses: u32,
    /// Number of times that other nodes have removed this one since its last round.
    expelled: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self::new(0, Duration::ZERO)
    }
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

    /// Returns the pause after a lost write.
    ///
    /// Without a maximum from the settings, `urgent` writers retry immediately with the state from
    /// the answer. One of them wins in every round trip, which is the maximum rate of the store.
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

    /// Returns the pause before a new join after other nodes have removed this one.
    ///
    /// Agents whose clocks differ may remove and add one another again and again. The pause slows
    /// this down.
    pub(super) fn expelled(&mut self) -> Duration {
        self.expelled = self.expelled.saturating_add(1);
        let window = FIRST_EXPELLED.saturating_mul(1 << self.expelled.min(16));
        self.part_of(window.min(LONGEST_WINDOW))
    }

    pub(super) fn joined(&mut self) {
        self.expelled = 0;
    }

    /// `true` after more than one consecutive lost write.
    pub(super) fn is_crowded(&self) -> bool {
        self.losses > 1
    }

    pub(super) fn first_join(&mut self) -> Duration {
        self.part_of(FIRST_JOIN)
    }

    /// Returns the pause before a write that this number of agents is about to try.
    ///
    /// `None` for few writers.
    pub(super) fn pause_before_write(&mut self, writers: usize) -> Option<Duration> {
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

/// Returns the minimum time between two reads of a state that changes.
///
/// If all `nodes` agents read after every write, the store would do little else. Agents in a
/// complete round wait longer, because most writes there are heartbeats.
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
        assert_eq!(pace.pause_before_write(4), None);
        assert!(pace.pause_before_write(100).unwrap() <= Duration::from_millis(100));
    }
}
