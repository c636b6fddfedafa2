//! Waiting awake, for at most a few microseconds.
//!
//! To be woken up costs tens of microseconds on a virtual machine; an answer that is on its way often
//! takes one. So who waits for an *answer* polls for a moment before it sleeps. Who waits for whatever may
//! come sleeps at once: nothing is ever watched for when nobody has been asked.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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

/// After so many waits in a row that ended only when the processor was offered to others, one is slept through;
/// after twice as many each time that it has not helped, up to the limit.
const MOVE: u32 = 4;
const MOVE_LIMIT: u32 = 64;

/// The spin budget of threads that wait again and again for the same peer, shared by them.
///
/// Every wait is counted, also one that was slept through: a wait of 40 us that ended by a wake-up shows that
/// spinning would have paid. So two sides that have both begun to sleep, because of a moment without a
/// processor, find back to spinning within a few waits.
///
/// Two threads that spin for one another on *one* processor would stay there: each wait ends when the other
/// gives the processor up, and the system moves no thread that has just run. Then one wait is slept through,
/// since a thread that is woken is put on a processor that is free.
#[derive(Debug)]
pub struct SpinBudget {
    longest: Duration,
    /// Moving average of the waits in nanoseconds; each counts at most twice the budget.
    average: AtomicU64,
    /// The last waits in a row that ended after [`LONGEST`].
    slow: AtomicU32,
    /// The number of them after which one wait is slept through.
    most_slow: AtomicU32,
}

impl SpinBudget {
    /// Spins for at most this long, if waits are expected to end within it; with zero, or on one processor,
    /// never.
    pub fn new(longest: Duration) -> Self {
        Self {
            longest: if is_alone() { Duration::ZERO } else { longest },
            average: AtomicU64::new(0),
            slow: AtomicU32::new(0),
            most_slow: AtomicU32::new(MOVE),
        }
    }

    /// How long the next wait is to spin; zero if it had better sleep at once.
    pub fn next(&self) -> Duration {
        let average = Duration::from_nanos(self.average.load(Ordering::Relaxed));
        let most = self.most_slow.load(Ordering::Relaxed);
        if average > self.longest {
            Duration::ZERO
        } else if self.slow.load(Ordering::Relaxed) >= most {
            self.slow.store(0, Ordering::Relaxed);
            let more = (most * 2).min(MOVE_LIMIT);
            self.most_slow.store(more, Ordering::Relaxed);
            Duration::ZERO
        } else {
            self.longest
        }
    }

    /// Counts a wait that took so long, awake or asleep.
    pub fn learn(&self, took: Duration) {
        let average = self.average.load(Ordering::Relaxed);
        let longest = self.longest.as_nanos();
        let (spins, nanos) = (u128::from(average) <= longest, took.as_nanos());
        // Two threads that write at once lose one wait, which does no harm.
        if spins && took > LONGEST && nanos <= longest {
            let slow = self.slow.load(Ordering::Relaxed);
            self.slow.store(slow.saturating_add(1), Ordering::Relaxed);
        } else if self.slow.swap(0, Ordering::Relaxed) == 0 && took <= LONGEST {
            self.most_slow.store(MOVE, Ordering::Relaxed);
        }
        let took = u64::try_from(nanos.min(longest * 2)).unwrap_or(u64::MAX);
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

    fn budget() -> SpinBudget {
        SpinBudget {
            longest: Duration::from_micros(100),
            average: AtomicU64::new(0),
            slow: AtomicU32::new(0),
            most_slow: AtomicU32::new(MOVE),
        }
    }

    /// The numbers of the waits that are slept through, if each takes so long.
    fn slept(budget: &SpinBudget, waits: u32, took: Duration) -> Vec<u32> {
        let each = (0..waits).filter(|_| {
            let sleeps = budget.next().is_zero();
            budget.learn(took);
            sleeps
        });
        each.collect()
    }

    #[test]
    fn waits_that_end_only_when_the_processor_is_offered_are_slept_through_now_and_then() {
        let budget = budget();
        let slow = LONGEST * 2;
        assert_eq!(slept(&budget, 30, slow), [4, 12, 28]);
        let often = slept(&budget, 1000, slow).len();
        assert!(
            (1000 / 64 - 2..=1000 / 32).contains(&(often as u32)),
            "{often}"
        );
        // Two that follow each other at once are on two processors.
        assert_eq!(slept(&budget, 100, LONGEST / 10), []);
        assert_eq!(slept(&budget, 6, slow), [4]);
    }

    #[test]
    fn a_budget_follows_the_waits_of_the_last_time() {
        let budget = budget();
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
