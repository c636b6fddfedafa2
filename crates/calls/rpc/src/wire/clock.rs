//! The clock of the sans-I/O state machines: nanoseconds since its first use.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rdzv_core::time::Mono;

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn mono(instant: Instant) -> Mono {
    Mono::from_origin(instant.saturating_duration_since(*ORIGIN))
}

pub(crate) fn instant(mono: Mono) -> Instant {
    *ORIGIN + mono.since(Mono::ZERO)
}

/// Returns the nanoseconds from the origin to `instant`, at most `u64::MAX`.
pub(crate) fn nanoseconds(instant: Instant) -> u64 {
    let since = instant.saturating_duration_since(*ORIGIN);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn from_nanoseconds(nanoseconds: u64) -> Option<Instant> {
    (nanoseconds != u64::MAX).then(|| *ORIGIN + Duration::from_nanos(nanoseconds))
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a limit in microseconds: at least 1, or 0 if there is no limit.
pub(crate) fn limit_micros(limit: Option<Duration>) -> u64 {
    limit.map_or(0, |limit| micros(limit).max(1))
}
