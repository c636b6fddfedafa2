//! Readings of the monotonic clock and the wall clock.

use std::future::pending;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdzv_core::time::{Mono, Now, Wall};

/// Clock that returns the monotonic and the wall time together.
/// The monotonic time starts at 0 when the clock is created. It excludes the time of a suspension
/// (Ctrl-Z, or a fence after which the workers continue). Callers must therefore not keep a copy of
/// the clock.
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

    /// Excludes the time since `stopped`: the next reading equals `stopped`.
    pub(crate) fn was_stopped_since(&mut self, stopped: Mono) {
        self.leave_out(self.now().mono.since(stopped));
    }

    /// Excludes this much of the past time.
    pub(crate) fn leave_out(&mut self, time: Duration) {
        self.origin += time.min(self.origin.elapsed());
    }

    pub(crate) fn instant(self, at: Mono) -> tokio::time::Instant {
        (self.origin + at.since(Mono::ZERO)).into()
    }
}

/// Waits for `future`; never returns if it is `None`.
pub(crate) async fn or_forever<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

pub(crate) fn wall() -> Wall {
    let micros = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros());
    Wall::from_unix_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_left_out() {
        let hour = Duration::from_secs(3600);
        let mut clock = Clock {
            origin: Instant::now() - hour,
        };
        let before = Mono::from_origin(hour / 2);
        clock.was_stopped_since(before);
        let after = clock.now().mono;
        assert!(after.since(before) < Duration::from_secs(60), "{after:?}");
        assert!(after >= before);
    }
}
