//! Busy waiting for a short time before a sleep.
//!
//! A wake-up costs tens of microseconds on a virtual machine. An answer that is in flight often
//! takes one microsecond. A thread that waits for an *answer* therefore polls for a moment before
//! it sleeps. A thread that waits for unsolicited messages sleeps immediately, so a process without
//! pending requests never spins.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

/// Time for which a spinning thread keeps its processor.
///
/// After that it offers the processor to other threads between two polls. The time is short,
/// because two threads that spin for each other on one processor need it for each step. It is
/// longer than an answer from another processor takes.
const KEEP: Duration = Duration::from_micros(4);

/// Minimum time of another thread's turn.
///
/// Without another thread, an offer takes less.
const TURN: Duration = Duration::from_micros(2);

/// Number of polls between two reads of the clock.
const POLLS: u32 = 32;

/// Time at which a spinning thread offers its processor to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offers {
    /// After [`KEEP`].
    Late,
    Always,
    Never,
}

/// Spin budget of threads that repeatedly wait for the same peer.
///
/// Every wait counts, even if the thread sleeps: a wait of 40 us that ended by a wake-up shows that
/// spinning would have been better. Two sides that both sleep, after a moment without a processor,
/// therefore return to spinning within a few waits. The budget must be longer than two wake-ups,
/// because each side's wait then includes both.
///
/// With more threads than processors ([`crowded`](Self::crowded)), a thread offers its processor
/// from the first poll on. The peer that it waits for runs there, and neither sleeps. Sleeping
/// would cost more than the wake-up: on a virtual machine each sleep makes the processor leave the
/// guest, and it returns to cold caches and predictors.
///
/// A thread beside a computing thread of its process never offers its processor
/// ([`holding`](Self::holding)). The system would let the computing thread run for milliseconds,
/// even if the peers have sent data.
#[derive(Debug)]
pub struct SpinBudget {
    longest: Duration,
    offers: Offers,
    /// `true` if other threads ran on the processor during the last wait.
    shared: AtomicBool,
    /// Moving average of the waits in nanoseconds.
    ///
    /// Each wait counts as at most twice the budget.
    average: AtomicU64,
}

impl SpinBudget {
    /// Creates a budget that spins for at most this long.
    ///
    /// Threads spin only if waits are expected to end within the budget.
    ///
    /// With zero, or on one processor, threads never spin.
    pub fn new(longest: Duration) -> Self {
        Self::with(unless_alone(longest), Offers::Late)
    }

    /// Creates a budget for threads that share processors with their peers.
    ///
    /// These threads spin even on one processor.
    pub fn crowded(longest: Duration) -> Self {
        Self::with(longest, Offers::Always)
    }

    /// Creates a budget for threads that keep their processor.
    ///
    /// These threads never offer the processor to other threads during the wait.
    pub fn holding(longest: Duration) -> Self {
        Self::with(unless_alone(longest), Offers::Never)
    }

    fn with(longest: Duration, offers: Offers) -> Self {
        Self {
            longest,
            offers,
            shared: AtomicBool::new(false),
            average: AtomicU64::new(0),
        }
    }

    /// Begins a wait.
    ///
    /// Record its end with [`learn`](Self::learn), even after a sleep.
    pub fn begin(&self) -> SpinWait {
        SpinWait {
            begun: Instant::now(),
            budget: self.next(),
            offers: self.offers,
        }
    }

    /// Begins a wait at this time, for a thread that polls itself.
    pub fn poll_from(&self, begun: Instant) -> Polls<'_> {
        let is_shared = self.shared.load(Ordering::Relaxed);
        Polls {
            of: self,
            begun,
            keep: if is_shared { Duration::ZERO } else { KEEP },
            others_ran: false,
        }
    }

    /// Returns the time for the next wait to spin; zero to sleep immediately.
    pub fn next(&self) -> Duration {
        let average = Duration::from_nanos(self.average.load(Ordering::Relaxed));
        if average > self.longest {
            Duration::ZERO
        } else {
            self.longest
        }
    }

    /// Records the duration of a wait, with or without a sleep.
    pub fn learn(&self, took: Duration) {
        // Two threads that write at the same time lose one wait, which does no harm.
        let average = self.average.load(Ordering::Relaxed);
        let took = took.min(self.longest * 2).as_nanos();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        self.average
            .store((average * 3 + took) / 4, Ordering::Relaxed);
    }
}

/// Polls of one wait, for a thread that does other work between them.
///
/// The thread reads the clock itself.
///
/// If other threads ran on this processor during the last wait, the peer is probably one of them.
/// In that case, the thread offers the processor from the first poll on. Otherwise the thread first
/// keeps the processor for a few microseconds.
#[derive(Debug)]
pub struct Polls<'a> {
    of: &'a SpinBudget,
    begun: Instant,
    keep: Duration,
    others_ran: bool,
}

impl Polls<'_> {
    /// `true` if another poll is due at this time; `false` if it is time to sleep.
    ///
    /// Other threads may get the processor before the poll.
    pub fn go_on(&mut self, now: Instant) -> bool {
        let spun = now.saturating_duration_since(self.begun);
        if spun >= self.of.next() {
            return false;
        }
        if spun < self.keep {
            spin_loop();
            return true;
        }
        let offered = Instant::now();
        yield_now();
        self.others_ran |= offered.elapsed() > TURN;
        true
    }

    /// Records the end of the wait at this time.
    ///
    /// Returns `true` if other threads have run on the processor during the wait.
    pub fn end(self, now: Instant) -> bool {
        self.of.learn(now.saturating_duration_since(self.begun));
        self.of.shared.store(self.others_ran, Ordering::Relaxed);
        self.others_ran
    }
}

/// One wait of a thread that spins before it sleeps.
#[derive(Debug, Clone, Copy)]
pub struct SpinWait {
    begun: Instant,
    budget: Duration,
    offers: Offers,
}

impl SpinWait {
    /// Polls until `ready` returns `true`, or until this wait's budget is used.
    ///
    /// Returns `true` if `ready` returned `true`; `false` if it is time to sleep.
    pub fn spin(&self, mut ready: impl FnMut() -> bool) -> bool {
        loop {
            if ready() {
                return true;
            }
            let spun = self.begun.elapsed();
            if spun >= self.budget {
                return false;
            }
            let offers = match self.offers {
                Offers::Late => spun >= KEEP,
                Offers::Always => true,
                Offers::Never => false,
            };
            if offers {
                yield_now();
                continue;
            }
            for _ in 0..POLLS {
                spin_loop();
                if ready() {
                    return true;
                }
            }
        }
    }

    /// Returns the time since the wait began.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// Returns this duration, or zero with one processor.
///
/// With one processor the peer cannot run while this thread polls.
fn unless_alone(longest: Duration) -> Duration {
    static ALONE: OnceLock<bool> = OnceLock::new();
    let count = || available_parallelism().is_ok_and(|processors| processors.get() == 1);
    if *ALONE.get_or_init(count) {
        Duration::ZERO
    } else {
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_sees_what_comes_in_time() {
        let wait = SpinBudget::holding(Duration::from_secs(60)).begin();
        let mut polls = 0;
        assert!(wait.spin(|| {
            polls += 1;
            polls == 100
        }));
    }

    #[test]
    fn a_crowded_wait_offers_the_processor_and_then_ends() {
        let longest = Duration::from_micros(100);
        let wait = SpinBudget::crowded(longest).begin();
        assert!(!wait.spin(|| false));
        assert!(wait.elapsed() >= longest);
    }

    fn budget() -> SpinBudget {
        SpinBudget::with(Duration::from_micros(100), Offers::Late)
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
            "one long wait does not change the budget"
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
        assert!(waits <= 4, "{waits} waits until it spins again");
    }

    #[test]
    fn a_wait_after_one_with_others_offers_the_processor_at_once() {
        let budget = budget();
        let now = Instant::now();
        assert_eq!(budget.poll_from(now).keep, KEEP);
        let mut polls = budget.poll_from(now);
        polls.others_ran = true;
        assert!(polls.end(now));
        assert_eq!(budget.poll_from(now).keep, Duration::ZERO);
        assert!(!budget.poll_from(now).end(now));
        assert_eq!(budget.poll_from(now).keep, KEEP, "one wait is enough");
    }

    #[test]
    fn polls_end_with_the_budget() {
        let budget = budget();
        let begun = Instant::now();
        let mut polls = budget.poll_from(begun);
        assert!(polls.go_on(begun));
        assert!(polls.go_on(begun + budget.longest / 2));
        assert!(!polls.go_on(begun + budget.longest));
    }

    #[test]
    fn with_no_time_it_looks_once() {
        let mut polls = 0;
        assert!(!SpinBudget::new(Duration::ZERO).begin().spin(|| {
            polls += 1;
            false
        }));
        assert_eq!(polls, 1);
    }
}
