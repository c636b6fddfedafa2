//! Rate limit for log lines that a peer can cause.

use std::time::Duration;

use crate::time::Mono;

/// Rate limiter that admits a number of log lines per interval.
///
/// The limiter counts the dropped lines, so that the log can report their number. Once a line was
/// dropped, no line is admitted until [`RateLimit::take_dropped`] has returned the number.
#[derive(Debug, Clone, Default)]
pub struct RateLimit {
    most: u32,
    interval: Duration,
    /// Start of the current interval.
    since: Option<Mono>,
    passed: u32,
    dropped: u64,
}

impl RateLimit {
    /// Creates a limiter that admits at most `most` lines per `interval`.
    pub fn new(most: u32, interval: Duration) -> Self {
        Self {
            most,
            interval,
            since: None,
            passed: 0,
            dropped: 0,
        }
    }

    /// `true` if a line may be logged now; otherwise counts it as dropped.
    pub fn admits(&mut self, now: Mono) -> bool {
        if self.since.is_none_or(|since| since + self.interval <= now) && self.dropped == 0 {
            self.since = Some(now);
            self.passed = 0;
        }
        let admitted = self.passed < self.most;
        if admitted {
            self.passed += 1;
        } else {
            self.dropped += 1;
        }
        admitted
    }

    /// Returns the time from which [`RateLimit::take_dropped`] returns a number.
    pub fn deadline(&self) -> Option<Mono> {
        let since = self.since.filter(|_| self.dropped > 0)?;
        Some(since + self.interval)
    }

    /// Returns the number of dropped lines once their interval is over.
    ///
    /// The next admitted line then starts a new interval. Returns `None` if no line was dropped or
    /// the interval is not over.
    pub fn take_dropped(&mut self, now: Mono) -> Option<u64> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.since = None;
        Some(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    #[test]
    fn lines_beyond_the_limit_are_counted_and_reported_at_the_end_of_the_interval() {
        let mut limit = RateLimit::new(2, INTERVAL);
        let start = Mono::from_origin(Duration::from_secs(100));
        let admitted: Vec<bool> = (0..5).map(|_| limit.admits(start)).collect();
        assert_eq!(admitted, [true, true, false, false, false]);
        assert_eq!(limit.deadline(), Some(start + INTERVAL));
        assert_eq!(limit.take_dropped(start), None);
        let end = start + INTERVAL;
        assert!(
            !limit.admits(end),
            "lines are dropped until the count has been taken"
        );
        assert_eq!(limit.take_dropped(end), Some(4));
        assert_eq!((limit.deadline(), limit.take_dropped(end)), (None, None));
        assert!(limit.admits(end));
    }

    #[test]
    fn lines_that_come_seldom_all_pass() {
        let mut limit = RateLimit::new(1, INTERVAL);
        let mut now = Mono::ZERO;
        for _ in 0..5 {
            assert!(limit.admits(now));
            assert_eq!(limit.deadline(), None);
            now = now + INTERVAL;
        }
    }
}
