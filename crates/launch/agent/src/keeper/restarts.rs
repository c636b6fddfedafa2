//! Rules for restarting a process that was killed: the limit and the pause.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rdzv_core::signal;

/// Lives shorter than this count against the limit on restarts.
const SHORT: Duration = Duration::from_secs(10);

/// After a life shorter than this, a pause precedes the restart.
const VERY_SHORT: Duration = Duration::from_secs(1);

const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Number of consecutive short lives.
    short: u32,
}

impl Lives {
    /// Returns the restart after a killed process, and the pause before it.
    /// `None` if more than `most` consecutive lives were short.
    pub(super) fn ended(
        &mut self,
        ended: ExitStatus,
        lived: Duration,
        most: u32,
    ) -> Option<(RestartReason, Duration)> {
        self.short = if lived < SHORT { self.short + 1 } else { 0 };
        let restart = RestartReason {
            ended,
            short: self.short,
            most,
        };
        let pause = if lived < VERY_SHORT {
            PAUSE
        } else {
            Duration::ZERO
        };
        (self.short <= most).then_some((restart, pause))
    }
}

/// Reason for the restart of a process; its text is a predicate for users.
#[derive(Debug, Clone, Copy)]
pub struct RestartReason {
    pub(super) ended: ExitStatus,
    /// Number of consecutive short lives.
    pub(super) short: u32,
    pub(super) most: u32,
}

impl fmt::Display for RestartReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ended.signal() {
            Some(number) => match signal::name(number) {
                Some(name) => write!(formatter, "was killed ({name})"),
                None => write!(formatter, "was killed (signal {number})"),
            },
            None => formatter.write_str("exited after a panic"),
        }?;
        formatter.write_str("; restarted")?;
        match self.short {
            0 => Ok(()),
            short => write!(formatter, " ({short} of {} in a row)", self.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_lives_in_a_row_use_restarts_up() {
        let killed = ExitStatus::from_raw(9);
        let mut lives = Lives::default();
        let (short, long) = (Duration::from_secs(5), Duration::from_secs(11));
        for _ in 0..10 {
            let (restart, pause) = lives.ended(killed, long, 1).unwrap();
            assert_eq!(restart.to_string(), "was killed (SIGKILL); restarted");
            assert!(pause.is_zero());
        }
        let (restart, _) = lives.ended(killed, short, 1).unwrap();
        assert_eq!(
            restart.to_string(),
            "was killed (SIGKILL); restarted (1 of 1 in a row)"
        );
        assert!(lives.ended(killed, short, 1).is_none());
        assert!(lives.ended(killed, long, 1).is_some());
        let (_, pause) = lives.ended(killed, Duration::ZERO, 1).unwrap();
        assert_eq!(pause, PAUSE);
        assert!(Lives::default().ended(killed, short, 0).is_none());
    }
}
