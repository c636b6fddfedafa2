//! Waiting awake, for at most a few microseconds.
//!
//! To be woken up costs tens of microseconds on a virtual machine; an answer that is on its way
//! often takes one. So who waits for an *answer* polls for a moment before it sleeps. Who waits for
//! whatever may come sleeps at once: nothing is ever watched for when nobody has been asked.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

/// A thread that spins keeps its processor for this long; after that it offers it to others between two polls.
/// Two threads that spin for one another on one processor take this long for each step, so it is short; it is
/// longer than what an answer takes that comes from another processor.
const KEEP: Duration = Duration::from_micros(4);

/// A turn of others on a processor takes longer than this; to offer it when nobody wants it takes less.
const TURN: Duration = Duration::from_micros(2);

/// Number of polls between two looks at the clock.
const POLLS: u32 = 32;

/// When a thread that spins offers its processor to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offers {
    /// After [`KEEP`].
    Late,
    Always,
    Never,
}

/// The spin budget of threads that wait again and again for the same peer, shared by them.
///
/// Every wait is counted, also one that was slept through: a wait of 40 us that ended by a wake-up
/// shows that spinning would have paid. So two sides that have both begun to sleep, because of a
/// moment without a processor, find back to spinning within a few waits. The budget has to be
/// longer than two wake-ups for that, since each side's wait then has both in it.
///
/// With more threads than processors ([`crowded`](Self::crowded)) the processor is offered from the
/// first poll on: the peer that this thread waits for runs on it, and neither sleeps. Sleeping
/// would cost more than its wake-up: on a virtual machine each makes the processor leave the guest,
/// which comes back to cold caches and predictors.
///
/// A thread beside another one of its process that computes does neither
/// ([`holding`](Self::holding)): the system would let that one go on for milliseconds, whatever the
/// peers have sent meanwhile.
#[derive(Debug)]
pub struct SpinBudget {
    longest: Duration,
    offers: Offers,
    /// Whether others had run on the processor when the last wait ended.
    shared: AtomicBool,
    /// Moving average of the waits in nanoseconds; each counts at most twice the budget.
    average: AtomicU64,
}

impl SpinBudget {
    /// Spins for at most this long, if waits are expected to end within it; with zero, or on one processor,
    /// never.
    pub fn new(longest: Duration) -> Self {
        Self::with(unless_alone(longest), Offers::Late)
    }

    /// As [`new`](Self::new), for threads that share processors with those whom they wait for.
    pub fn crowded(longest: Duration) -> Self {
        Self::with(longest, Offers::Always)
    }

    /// As [`new`](Self::new), for threads that keep their processor from others of their own process meanwhile.
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

    /// Begins a wait. Its end is to be counted ([`learn`](Self::learn)), also if it ended asleep.
    pub fn begin(&self) -> SpinWait {
        SpinWait {
            begun: Instant::now(),
            budget: self.next(),
            offers: self.offers,
        }
    }

    /// Begins a wait of a thread that polls by itself, at this time.
    pub fn poll_from(&self, begun: Instant) -> Polls<'_> {
        let is_shared = self.shared.load(Ordering::Relaxed);
        Polls {
            of: self,
            begun,
            keep: if is_shared { Duration::ZERO } else { KEEP },
            others_ran: false,
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
        // Two threads that write at once lose one wait, which does no harm.
        let average = self.average.load(Ordering::Relaxed);
        let took = took.min(self.longest * 2).as_nanos();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        self.average
            .store((average * 3 + took) / 4, Ordering::Relaxed);
    }
}

/// The polls of one wait of a thread that has other things to look at between them, and looks at the clock
/// itself.
///
/// If the wait before ended after others had run on this processor, the peer is probably one of
/// them: the processor is offered from the first poll on. Otherwise it is kept for a few
/// microseconds at first.
#[derive(Debug)]
pub struct Polls<'a> {
    of: &'a SpinBudget,
    begun: Instant,
    keep: Duration,
    others_ran: bool,
}

impl Polls<'_> {
    /// Whether another poll is due at this time, before which others may have had the processor. False: it is
    /// time to sleep.
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

    /// Counts the wait, which ended at this time. Returns whether others have run on the processor meanwhile.
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
    /// Polls until it is ready (true), or until the budget of this wait is used up and it is time to sleep (false).
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

    /// Time since it began.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// This long, or zero with one processor: there the peer cannot go on while we look.
fn unless_alone(longest: Duration) -> Duration {
    static ALONE: OnceLock<bool> = OnceLock::new();
    let count = || available_parallelism().is_ok_and(|processors| processors.get() == 1);
    match *ALONE.get_or_init(count) {
        true => Duration::ZERO,
        false => longest,
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
    fn a_wait_after_one_with_others_offers_the_processor_at_once() {
        let budget = budget();
        let now = Instant::now();
        assert_eq!(budget.poll_from(now).keep, KEEP);
        let mut polls = budget.poll_from(now);
        polls.others_ran = true;
        assert!(polls.end(now));
        assert_eq!(budget.poll_from(now).keep, Duration::ZERO);
        assert!(!budget.poll_from(now).end(now));
        assert_eq!(budget.poll_from(now).keep, KEEP, "one wait alone is enough");
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
