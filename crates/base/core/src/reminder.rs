//! Schedule of log lines about a wait that takes long.

use std::time::Duration;

/// Time before the first reminder; shorter waits are not reported.
/// This value puts the first line on the screen within 3 s.
pub const FIRST: Duration = Duration::from_millis(2500);

const SECOND: Duration = Duration::from_secs(30);

/// Interval between reminders, from the third reminder on.
const EACH: Duration = Duration::from_secs(300);

/// Target of log events that report waits.
/// Events about nodes have a field `left`, in seconds.
pub const TARGET: &str = "rdzv::waiting";

/// Schedule of reminders: after 2.5 s, after 30 s, then every 5 minutes.
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
