//! Schedule of log lines about a wait that takes long.

use std::time::Duration;

/// Time until the first reminder; shorter waits are not reported.
/// With this value, the first line is visible within 3 s.
pub const FIRST: Duration = Duration::from_millis(2500);

const SECOND: Duration = Duration::from_secs(30);

/// From the third on, reminders are due at multiples of this time.
const EACH: Duration = Duration::from_secs(300);

/// Target of log events that report waits.
/// Most of these events have a field `left`: the number of seconds until the wait ends.
pub const TARGET: &str = "rdzv::waiting";

/// Schedule of reminders: after 2.5 s, after 30 s, and then every 5 minutes.
///
/// All times count from the start of the wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reminder {
    passed: u32,
}

impl Reminder {
    /// Returns the time from the start of the wait to the next reminder.
    pub fn next(&self) -> Duration {
        match self.passed {
            0 => FIRST,
            1 => SECOND,
            passed => EACH * (passed - 1),
        }
    }

    /// `true` if a reminder is due at `elapsed` after the start of the wait.
    /// Several missed reminders count as one.
    pub fn is_due(&mut self, elapsed: Duration) -> bool {
        let due = self.next() <= elapsed;
        while self.next() <= elapsed {
            self.passed += 1;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_spoken_of_after_2_5_and_30_s_and_every_5_minutes() {
        let mut reminder = Reminder::default();
        let due: Vec<u64> = (0..2000)
            .filter(|half| reminder.is_due(Duration::from_millis(500 * half)))
            .collect();
        assert_eq!(due, [5, 60, 600, 1200, 1800]);
    }

    #[test]
    fn missed_reminders_are_one() {
        let mut reminder = Reminder::default();
        assert!(reminder.is_due(Duration::from_secs(700)));
        assert!(!reminder.is_due(Duration::from_secs(899)));
        assert_eq!(reminder.next(), Duration::from_secs(900));
    }
}
