//! Waiting awake, for at most a few microseconds.
//!
//! To be woken up costs tens of microseconds on a virtual machine; an answer that is on its way often
//! takes one. So who waits for an *answer* polls for a moment before it sleeps. Who waits for whatever may
//! come sleeps at once: nothing is ever watched for when nobody has been asked.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

/// The longest that anybody should wait awake.
pub const LONGEST: Duration = Duration::from_micros(20);

/// How often it polls between two polls at the clock.
const POLLS: u32 = 32;

/// After so many waits asleep, one awake finds out whether the peer has become faster; after twice as
/// many each time that it has not, up to the limit.
const RETRY: u32 = 16;
const RETRY_LIMIT: u32 = 256;

/// One who waits again and again for the same peer, and learns whether to do it awake is worth it.
#[derive(Debug, Clone)]
pub struct Spin {
    longest: Duration,
    /// Moving average of the waits; one that did not end counts double.
    average: Duration,
    /// How many waits in a row were not done awake.
    skipped: u32,
    /// How many are to be.
    retry: u32,
}

impl Default for Spin {
    fn default() -> Self {
        Self::new(LONGEST)
    }
}

impl Spin {
    /// Waits awake for at most this long; with zero, never.
    pub fn new(longest: Duration) -> Self {
        let longest = if is_alone() { Duration::ZERO } else { longest };
        Self {
            longest,
            average: Duration::ZERO,
            skipped: 0,
            retry: RETRY,
        }
    }

    /// Looks until it is ready (true), or until it is better to sleep (false).
    pub fn wait(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        if self.longest.is_zero() {
            return false;
        }
        if self.average > self.longest && self.skipped < self.retry {
            self.skipped += 1;
            return false;
        }
        if self.average > self.longest {
            self.retry = (self.retry * 2).min(RETRY_LIMIT);
        }
        self.skipped = 0;
        let started = Instant::now();
        loop {
            for _ in 0..POLLS {
                if ready() {
                    self.learn(started.elapsed());
                    self.retry = RETRY;
                    return true;
                }
                spin_loop();
            }
            if started.elapsed() >= self.longest {
                self.learn(self.longest * 2);
                return false;
            }
        }
    }

    fn learn(&mut self, took: Duration) {
        self.average = (self.average * 3 + took) / 4;
    }
}

/// The spin budget of threads that wait again and again for the same peer, shared by them.
///
/// Every wait is counted, also one that was slept through: a wait of 40 us that ended by a wake-up shows that
/// spinning would have paid. So two sides that have both begun to sleep, because of a moment without a
/// processor, find back to spinning within a few waits.
#[derive(Debug)]
pub struct SpinBudget {
    longest: Duration,
    /// Moving average of the waits in nanoseconds; each counts at most twice the budget.
    average: AtomicU64,
}

impl SpinBudget {
    /// Spins for at most this long, if waits are expected to end within it; with zero, or on one processor,
    /// never.
    pub fn new(longest: Duration) -> Self {
        Self {
            longest: if is_alone() { Duration::ZERO } else { longest },
            average: AtomicU64::new(0),
        }
    }

    /// How long the next wait is to spin; zero if it had better sleep at once.
    pub fn next(&self) -> Duration {
        let average = Duration::from_nanos(self.average.load(Ordering::Relaxed));
        if average > self.longest {
            Duration::ZERO
        } else {
            self.longest
        }
    }

    /// Counts a wait that took so long, awake or asleep.
    pub fn learn(&self, took: Duration) {
        let average = self.average.load(Ordering::Relaxed);
        let took = took.min(self.longest * 2).as_nanos();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        // Two threads that write at once lose one wait, which does no harm.
        self.average
            .store((average * 3 + took) / 4, Ordering::Relaxed);
    }
}

/// Between two polls of a thread that has spun for so long: at first the processor is kept; after
/// [`LONGEST`] it is offered to threads that want to run, one of which may be the peer.
pub fn relax(spun: Duration) {
    if spun < LONGEST {
        spin_loop();
    } else {
        yield_now();
    }
}

/// With one processor the peer cannot go on while we look.
fn is_alone() -> bool {
    static ALONE: OnceLock<bool> = OnceLock::new();
    *ALONE.get_or_init(|| available_parallelism().is_ok_and(|processors| processors.get() == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin() -> Spin {
        Spin {
            longest: LONGEST,
            average: Duration::ZERO,
            skipped: 0,
            retry: RETRY,
        }
    }

    #[test]
    fn it_gives_up_and_then_looks_once_only() {
        let mut spin = spin();
        let mut polls = 0_u32;
        for _ in 0..8 {
            polls = 0;
            assert!(!spin.wait(|| {
                polls += 1;
                false
            }));
        }
        assert_eq!(polls, 1, "it should have learnt that nothing comes");
    }

    #[test]
    fn it_tries_again_after_a_while() {
        let mut spin = spin();
        let mut awake = 0;
        for _ in 0..1000 {
            let mut polls = 0_u32;
            spin.wait(|| {
                polls += 1;
                false
            });
            awake += u32::from(polls > 1);
        }
        assert!((8..16).contains(&awake), "{awake} of 1000 waits were awake");
    }

    #[test]
    fn it_sees_what_comes_in_time() {
        let mut spin = spin();
        let mut polls = 0;
        assert!(spin.wait(|| {
            polls += 1;
            polls == 40
        }));
    }

    #[test]
    fn a_budget_follows_the_waits_of_the_last_time() {
        let budget = SpinBudget {
            longest: Duration::from_micros(100),
            average: AtomicU64::new(0),
        };
        assert_eq!(budget.next(), budget.longest);
        let one_hour = Duration::from_secs(3600);
        budget.learn(one_hour);
        assert_eq!(
            budget.next(),
            budget.longest,
            "one long wait is an exception"
        );
        for _ in 0..100 {
            budget.learn(one_hour);
        }
        assert_eq!(budget.next(), Duration::ZERO);
        let mut waits = 0;
        while budget.next().is_zero() {
            budget.learn(Duration::from_micros(40));
            waits += 1;
        }
        assert!(waits <= 4, "{waits} waits to find back");
    }

    #[test]
    fn with_no_time_it_looks_once() {
        let mut polls = 0;
        assert!(!Spin::new(Duration::ZERO).wait(|| {
            polls += 1;
            false
        }));
        assert_eq!(polls, 1);
    }
}
