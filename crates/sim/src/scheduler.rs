//! Virtual time: the events of one seed, in their order.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use fastrand::Rng;
use rdzv_core::time::{Mono, Now, Wall};

use crate::trace::{Log, Trace};

/// Start of virtual time, in Unix seconds.
const EPOCH: i64 = 1_800_000_000;

/// First sequence number of ordinary events.
///
/// Events with smaller numbers precede all other events of their time.
const FIRST: u64 = 1 << 32;

/// Clock, random numbers, event queue and log of one seed.
#[derive(Debug)]
pub struct Scheduler<E> {
    /// Source of all random numbers in this world.
    pub random: Rng,
    /// Nanoseconds since the beginning.
    pub now: u64,
    /// Number of events that have happened.
    pub count: u64,
    log: Log,
    events: BTreeMap<(u64, u64), E>,
    sequence: u64,
    urgent: u64,
}

impl<E> Scheduler<E> {
    /// Creates a scheduler without events.
    pub fn new(seed: u64, trace: Trace) -> Self {
        Self {
            random: Rng::with_seed(seed),
            now: 0,
            count: 0,
            log: Log::new(trace),
            events: BTreeMap::new(),
            sequence: FIRST,
            urgent: 0,
        }
    }

    /// Returns a number that no event and no other caller has.
    pub fn unique(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Schedules an event, after all other events of its time.
    pub fn at(&mut self, time: u64, event: E) {
        let number = self.unique();
        self.events.insert((time.max(self.now), number), event);
    }

    /// Schedules an event in `delay` nanoseconds, after others of that time.
    pub fn after(&mut self, delay: u64, event: E) {
        self.at(self.now + delay, event);
    }

    /// Schedules the wake-up of a machine, unless the one at `wake` is as early.
    pub fn wake(&mut self, wake: &mut Option<u64>, due: Option<u64>, event: E) {
        if let Some(due) = due.map(|due| due.max(self.now))
            && wake.is_none_or(|at| due < at)
        {
            *wake = Some(due);
            self.at(due, event);
        }
    }

    /// Schedules an event for now, before other events of this time.
    pub fn at_once(&mut self, event: E) {
        self.urgent += 1;
        self.events.insert((self.now, self.urgent), event);
    }

    /// Removes and returns the next event, and advances the time to it.
    pub fn pop(&mut self) -> Option<E> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = time;
        self.count += 1;
        Some(event)
    }

    /// Returns the clocks of a process.
    ///
    /// The wall clock is ahead by `skew` microseconds.
    pub fn clocks(&self, skew: i64) -> Now {
        Now {
            mono: Mono::from_origin(Duration::from_nanos(self.now)),
            wall: Wall::from_unix_micros(EPOCH * 1_000_000 + (self.now / 1_000) as i64 + skew),
        }
    }

    /// Returns a random time between these two.
    pub fn between(&mut self, (least, most): (Duration, Duration)) -> u64 {
        self.random.u64(nanos(least)..=nanos(most))
    }

    /// Returns `true` with a probability of `percent`.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(0..100) < percent
    }

    /// Traces an event of `who`.
    pub fn log(&self, who: impl Display, text: impl FnOnce() -> String) {
        self.log.write(self.now, who, text);
    }
}

/// Returns a duration in nanoseconds of virtual time.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the deadline of a machine in nanoseconds of virtual time.
pub fn due(deadline: Option<Mono>) -> Option<u64> {
    deadline.map(|due| nanos(due.since(Mono::ZERO)))
}
