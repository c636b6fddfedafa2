//! The one place that reads clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rdzv_core::time::{Mono, Now, Wall};

/// Reads both clocks; the origin of the monotonic one is when this was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    pub(crate) fn now(self) -> Now {
        Now {
            mono: Mono::from_origin(self.origin.elapsed()),
            wall: wall(),
        }
    }

    /// The point in the runtime's time that `at` means.
    pub(crate) fn instant(self, at: Mono) -> tokio::time::Instant {
        (self.origin + at.since(Mono::ZERO)).into()
    }
}

/// The wall time.
pub(crate) fn wall() -> Wall {
    let micros = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros());
    Wall::from_unix_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}
