//! The time of the pure parts: nanoseconds since the first look at it.

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

/// Nanoseconds since the origin; what is further away than can be told is the end of time.
pub(crate) fn nanoseconds(instant: Instant) -> u64 {
    let since = instant.saturating_duration_since(*ORIGIN);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn from_nanoseconds(nanoseconds: u64) -> Option<Instant> {
    (nanoseconds != u64::MAX).then(|| *ORIGIN + Duration::from_nanos(nanoseconds))
}
