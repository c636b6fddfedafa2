//! Workers in an uninterruptible sleep.
//!
//! The watch finds these workers by their state letters in `/proc/PID/stat` over time.
//!
//! State `D` is the uninterruptible sleep: the process waits for a disk, a network file system or a
//! device driver. Short sleeps of this kind are common. A worker that stays in state `D` usually
//! reacts to no signal, not even to SIGKILL. Another attempt cannot get the resources that the
//! worker holds.
//!
//! Only the time between two checks counts, up to two intervals. An agent that was stopped did not
//! see the state of its workers during that time.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;

/// Letter for uninterruptible sleep in `/proc/PID/stat`.
pub const UNINTERRUPTIBLE: char = 'D';

/// Shortest interval between two checks.
const MOST_OFTEN: Duration = Duration::from_millis(20);

/// Longest interval between two checks.
const LEAST_OFTEN: Duration = Duration::from_secs(1);

/// Parses the limit, in seconds, from the value of its environment variable.
///
/// The variable is
/// [`TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`](rdzv_core::env::TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT).
/// `None` if the value is not a finite number above 0, as in PyTorch.
pub fn limit(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    if seconds <= 0.0 {
        return None;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// Returns the state letter in the content of `/proc/PID/stat`.
/// `None` if the text has another form.
pub fn state_letter(stat: &str) -> Option<char> {
    // The name in brackets may contain any characters, including brackets.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.trim_start().chars().next()
}

/// A finding of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// This worker is in the uninterruptible sleep.
    /// It was not at the previous check.
    First(LocalRank),
    /// This worker has been in that sleep for this long, at least the limit.
    Stuck(LocalRank, Duration),
}

/// Watches for workers that stay in the uninterruptible sleep.
#[derive(Debug)]
pub struct UninterruptibleWatch {
    limit: Duration,
    checked: Option<Mono>,
    /// Time for which each worker has been seen in that sleep.
    held: BTreeMap<LocalRank, Duration>,
}

impl UninterruptibleWatch {
    /// Creates a watch that reports workers held for `limit`.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            checked: None,
            held: BTreeMap::new(),
        }
    }

    /// Returns the time between two checks.
    pub fn interval(&self) -> Duration {
        (self.limit / 4).clamp(MOST_OFTEN, LEAST_OFTEN)
    }

    /// Records the state letters of all running workers, and returns the findings.
    pub fn check(&mut self, now: Mono, letters: &[(LocalRank, char)]) -> Vec<Sighting> {
        let step = self.checked.map_or(Duration::ZERO, |checked| {
            now.since(checked).min(self.interval() * 2)
        });
        self.checked = Some(now);
        let mut held = BTreeMap::new();
        let mut sightings = Vec::new();
        for &(worker, letter) in letters {
            if letter != UNINTERRUPTIBLE {
                continue;
            }
            let so_far = match self.held.get(&worker) {
                Some(before) => *before + step,
                None => {
                    sightings.push(Sighting::First(worker));
                    Duration::ZERO
                }
            };
            if so_far >= self.limit {
                sightings.push(Sighting::Stuck(worker, so_far));
            }
            held.insert(worker, so_far);
        }
        self.held = held;
        sightings
    }

    /// Forgets all workers, because the checks pause or another attempt begins.
    pub fn forget(&mut self) {
        self.checked = None;
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: LocalRank = LocalRank(3);

    /// Limit in seconds, one letter per second, and the expected findings by check.
    type Row<'a> = (u64, &'a str, &'a [(usize, Sighting)]);

    /// Checks once per letter, a second apart, and returns the findings by check.
    fn watched(limit: u64, letters: &str) -> Vec<(usize, Sighting)> {
        let mut watch = UninterruptibleWatch::new(Duration::from_secs(limit));
        let mut seen = Vec::new();
        for (second, letter) in letters.chars().enumerate() {
            let now = Mono::from_origin(Duration::from_secs(second as u64));
            let sightings = watch.check(now, &[(LocalRank(0), 'S'), (WORKER, letter)]);
            seen.extend(sightings.into_iter().map(|sighting| (second, sighting)));
        }
        seen
    }

    #[test]
    fn only_an_unbroken_sleep_as_long_as_the_limit_counts() {
        let stuck = |seconds| Sighting::Stuck(WORKER, Duration::from_secs(seconds));
        let first = Sighting::First(WORKER);
        let table: [Row<'_>; 6] = [
            (2, "SRSRZ", &[]),
            (3, "SDDSDDS", &[(1, first), (4, first)]),
            (3, "DDDD", &[(0, first), (3, stuck(3))]),
            (3, "SDDDDD", &[(1, first), (4, stuck(3)), (5, stuck(4))]),
            (2, "DDRDDD", &[(0, first), (3, first), (5, stuck(2))]),
            (60, "DDDDDDDDDD", &[(0, first)]),
        ];
        for (limit, letters, expected) in table {
            assert_eq!(watched(limit, letters), expected, "{limit} {letters}");
        }
    }

    #[test]
    fn time_in_which_the_agent_was_stopped_does_not_count() {
        let mut watch = UninterruptibleWatch::new(Duration::from_secs(10));
        let at = |seconds| Mono::from_origin(Duration::from_secs(seconds));
        let held = [(WORKER, 'D')];
        assert_eq!(watch.check(at(0), &held), [Sighting::First(WORKER)]);
        assert_eq!(watch.check(at(3600), &held), []);
        for second in 1..8 {
            assert_eq!(watch.check(at(3600 + second), &held), []);
        }
        let ten = Duration::from_secs(10);
        assert_eq!(watch.check(at(3608), &held), [Sighting::Stuck(WORKER, ten)]);
    }

    #[test]
    fn another_attempt_begins_anew() {
        let mut watch = UninterruptibleWatch::new(Duration::from_secs(1));
        let at = |seconds| Mono::from_origin(Duration::from_secs(seconds));
        watch.check(at(0), &[(WORKER, 'D')]);
        watch.forget();
        assert_eq!(
            watch.check(at(1), &[(WORKER, 'D')]),
            [Sighting::First(WORKER)]
        );
    }

    #[test]
    fn the_limit_is_a_number_of_seconds_above_zero() {
        assert_eq!(limit("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(limit(" 20 "), Some(Duration::from_secs(20)));
        for off in ["", "0", "-3", "soon", "nan", "inf"] {
            assert_eq!(limit(off), None, "{off}");
        }
    }

    #[test]
    fn looks_are_rare() {
        let interval = |limit| UninterruptibleWatch::new(limit).interval();
        assert_eq!(interval(Duration::from_secs(600)), LEAST_OFTEN);
        assert_eq!(interval(Duration::from_secs(2)), LEAST_OFTEN / 2);
        assert_eq!(interval(Duration::from_millis(1)), MOST_OFTEN);
    }

    #[test]
    fn the_letter_comes_after_the_name() {
        assert_eq!(state_letter("12 (a) b) c) D 1 12 12"), Some('D'));
        assert_eq!(state_letter("12 (sh) S 1"), Some('S'));
        assert_eq!(state_letter(""), None);
        assert_eq!(state_letter("12 (sh)"), None);
    }
}
