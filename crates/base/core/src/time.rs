//! Time as data, passed to the state machines.
//!
//! A driver reads the clocks and passes the time to the machine with each event.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Monotonic time in nanoseconds since an origin that the driver chooses.
/// The origin is usually the start of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(u64);

impl Mono {
    /// The origin itself.
    pub const ZERO: Self = Self(0);

    /// Time that is never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the time at `elapsed` after the origin.
    pub fn from_origin(elapsed: Duration) -> Self {
        Self(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the time since `earlier`; zero if `earlier` is later than `self`.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Mono {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub<Mono> for Mono {
    type Output = Duration;

    fn sub(self, earlier: Mono) -> Duration {
        self.since(earlier)
    }
}

/// Wall-clock time in microseconds since the Unix epoch.
/// Nodes exchange and compare wall-clock times. The deadline of a machine is a [`Mono`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Wall(i64);

impl Wall {
    /// Creates a time from microseconds since the Unix epoch.
    pub const fn from_unix_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the time in microseconds since the Unix epoch.
    pub const fn unix_micros(self) -> i64 {
        self.0
    }

    /// Returns the time in whole seconds since the Unix epoch, rounded down.
    pub const fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// Returns the seconds since the Unix epoch, like Python's `time.time()`.
    #[expect(
        clippy::cast_precision_loss,
        reason = "exact for 285 years around the epoch"
    )]
    pub fn unix_seconds_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Wall {
    /// Returns the time since `earlier`; zero if `earlier` is later than `self`.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for Wall {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_micros(duration)))
    }
}

impl Sub<Duration> for Wall {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(whole_micros(duration)))
    }
}

fn whole_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Reading of both clocks, one immediately after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Monotonic time, for deadlines and durations.
    pub mono: Mono,
    /// Wall-clock time, for display and for comparisons between nodes.
    pub wall: Wall,
}

impl Now {
    /// Creates a reading for a machine that ignores the wall clock.
    pub fn at(mono: Mono) -> Self {
        let wall = Wall::default();
        Self { mono, wall }
    }
}

/// Returns the earliest of several times; `None` if there is none.
pub fn earliest<T: Ord>(times: impl IntoIterator<Item = Option<T>>) -> Option<T> {
    times.into_iter().flatten().min()
}

/// Returns the delay before a retry: exponential backoff with jitter.
///
/// `attempt` counts from 0, and `jitter` is a random fraction in `0.0..1.0` that the driver draws.
/// The base is `first * 1.5^attempt`, or `most` if that is less. The delay is uniform between half
/// and one and a half times the base, but never above `most`.
pub fn backoff(attempt: u32, jitter: f64, first: Duration, most: Duration) -> Duration {
    let factor = 1.5_f64.powi(i32::try_from(attempt.min(64)).unwrap_or(64));
    let interval = (first.as_secs_f64() * factor).min(most.as_secs_f64());
    Duration::from_secs_f64((interval * (0.5 + jitter.clamp(0.0, 1.0))).min(most.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_and_is_bounded() {
        let first = Duration::from_millis(500);
        let most = Duration::from_secs(60);
        assert_eq!(backoff(0, 0.0, first, most), Duration::from_millis(250));
        assert_eq!(backoff(1, 0.5, first, most), Duration::from_millis(750));
        assert_eq!(backoff(1000, 0.999, first, most), most);
    }

    #[test]
    fn mono_arithmetic_saturates() {
        let late = Mono::from_origin(Duration::from_secs(5));
        assert_eq!(Mono::ZERO.since(late), Duration::ZERO);
        assert_eq!(
            late + Duration::MAX - late,
            Duration::from_nanos(u64::MAX - 5_000_000_000)
        );
    }

    #[test]
    fn wall_arithmetic_saturates() {
        let epoch = Wall::default();
        assert_eq!((epoch + Duration::MAX).unix_micros(), i64::MAX);
        assert_eq!((epoch - Duration::from_secs(1)).unix_micros(), -1_000_000);
        assert_eq!(epoch.since(epoch + Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn wall_seconds_round_down_before_the_epoch() {
        assert_eq!(Wall::from_unix_micros(-1).unix_seconds(), -1);
    }
}
