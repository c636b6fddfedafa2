//! A signal that ends the run.
//!
//! The text names the workers that are still running, the time that they have, and the effect of
//! the next signal if it has one.

use std::time::Duration;

use rdzv_core::rank::ranges;
use rdzv_core::signal;

use crate::line::{Line, LineRole, said};
use crate::quantity::{count, time};

/// Number of SIGINT, the same on all architectures.
const INTERRUPT: i32 = 2;

/// Number of SIGKILL.
const KILL: i32 = 9;

/// A request to end the run.
#[derive(Debug, Clone, Copy)]
pub struct Stop<'a> {
    /// Signal that the launcher received.
    pub signal: i32,
    /// Number of requests until now, from 1.
    pub request: u32,
    /// Ranks of the workers that are still running.
    pub ranks: &'a [u32],
    /// Time until SIGKILL.
    pub left: Duration,
    /// Time that the first request grants.
    /// The second request leaves at most a quarter of it.
    pub shutdown_timeout: Duration,
}

impl Stop<'_> {
    /// Returns the sentence.
    pub fn sentence(&self) -> String {
        let again = match self.signal {
            INTERRUPT => "Ctrl-C".to_owned(),
            signal => signal::in_words(signal),
        };
        let who = ranks(self.ranks);
        let (have, them) = if self.ranks.len() == 1 {
            ("has", "it")
        } else {
            ("have", "them")
        };
        if self.ranks.is_empty() {
            return format!("{again}: no worker is running; the run ends");
        }
        if self.left.is_zero() {
            return format!(
                "{again}: {who} {} killed",
                if self.ranks.len() == 1 { "is" } else { "are" }
            );
        }
        let left = time(self.left);
        match self.request {
            0 | 1 => format!(
                "{again}: {who} {have} {left} to exit; a second {again} leaves {}, a third kills \
                 {them}",
                time(self.left.min(self.shutdown_timeout / 4))
            ),
            2 => {
                format!("{again}: {who} {have} {left} left to exit; one more {again} kills {them}")
            }
            _ => format!("{again}: {who} {have} {left} left to exit"),
        }
    }

    /// Returns the sentence as lines.
    pub fn lines(&self, width: Option<usize>) -> Vec<Line> {
        said(LineRole::Warning, &self.sentence(), width)
    }
}

/// Returns the lines for workers that are killed after the shutdown timeout.
pub fn killed(ranks: &[u32], width: Option<usize>) -> Vec<Line> {
    let text = format!(
        "{} did not exit within the shutdown timeout and {} killed",
        self::ranks(ranks),
        if ranks.len() == 1 { "is" } else { "are" }
    );
    said(LineRole::Warning, &text, width)
}

/// Returns the lines for a worker that is killed after the abort timeout.
pub fn left_late(rank: u32, width: Option<usize>) -> Vec<Line> {
    let text = format!(
        "rank {rank} did not leave its function within the abort timeout (--abort-timeout) and is \
         killed"
    );
    said(LineRole::Warning, &text, width)
}

/// Returns the final lines of a run that a signal ended.
/// For example: `stopped by SIGTERM after 12 s; 8 workers exited`.
pub fn ended(
    signal: i32,
    after: Duration,
    workers: u32,
    killed: u32,
    width: Option<usize>,
) -> Vec<Line> {
    let name = match signal {
        INTERRUPT => "Ctrl-C (SIGINT)".to_owned(),
        signal => signal::in_words(signal),
    };
    let mut text = format!(
        "stopped by {name} after {}; {} exited",
        time(after),
        count(workers, "worker")
    );
    if killed > 0 {
        text += &format!(", {killed} of them killed by {}", signal::in_words(KILL));
    }
    said(LineRole::Warning, &text, width)
}

/// Returns ranks in words: `rank 3`, `ranks 0-4, 7`.
pub fn ranks(ranks: &[u32]) -> String {
    let list = ranges(ranks.iter().copied()).replace(',', ", ");
    match ranks {
        [_] => format!("rank {list}"),
        _ => format!("ranks {list}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_says_what_the_next_one_does() {
        let all = [0, 1, 2, 3];
        let stop = Stop {
            signal: 2,
            request: 1,
            ranks: &all,
            left: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(30),
        };
        assert_eq!(
            stop.sentence(),
            "Ctrl-C: ranks 0-3 have 30 s to exit; a second Ctrl-C leaves 7.5 s, a third kills them"
        );
        let stop = Stop {
            signal: 15,
            request: 2,
            ranks: &[3],
            left: Duration::from_millis(7_500),
            ..stop
        };
        assert_eq!(
            stop.sentence(),
            "SIGTERM: rank 3 has 7.5 s left to exit; one more SIGTERM kills it"
        );
        let stop = Stop {
            request: 3,
            left: Duration::ZERO,
            ..stop
        };
        assert_eq!(stop.sentence(), "SIGTERM: rank 3 is killed");
        let stop = Stop { ranks: &[], ..stop };
        assert_eq!(
            stop.sentence(),
            "SIGTERM: no worker is running; the run ends"
        );
    }

    #[test]
    fn the_end_counts_the_workers_that_had_to_be_killed() {
        let text = |number| ended(2, Duration::from_secs(12), 8, number, None)[0].text();
        assert_eq!(
            text(0),
            "rdzv: stopped by Ctrl-C (SIGINT) after 12 s; 8 workers exited"
        );
        assert_eq!(
            text(2),
            "rdzv: stopped by Ctrl-C (SIGINT) after 12 s; 8 workers exited, 2 of them killed by \
             SIGKILL"
        );
        assert_eq!(
            killed(&[3], None)[0].text(),
            "rdzv: rank 3 did not exit within the shutdown timeout and is killed"
        );
    }
}
