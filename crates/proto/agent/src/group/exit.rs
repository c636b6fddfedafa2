//! How processes end, and which failure was the root cause.

use rdzv_core::rank::LocalRank;
use rdzv_core::time::Wall;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// The reference's one number: the code, or minus the signal.
    pub fn as_number(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
        }
    }

    /// Whether this is a success.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

/// The end of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerExit {
    /// Which.
    pub local_rank: LocalRank,
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When that was seen.
    pub at: Wall,
    /// True if the agent had signalled it while it was still running.
    pub stopped_by_agent: bool,
}

/// One failure, as far as the choice of the root cause goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureTrace {
    /// When the worker was started.
    pub started: Wall,
    /// When its end was seen.
    pub exited: Wall,
    /// True if the agent had signalled it while it was still running.
    pub stopped_by_agent: bool,
    /// When the worker says that it failed (whole seconds, rounded down), if it left an error file.
    pub recorded_seconds: Option<i64>,
}

impl FailureTrace {
    /// The latest moment that the worker's own record can mean, if the record can be true at all:
    /// a worker cannot have failed before it was started or after it had ended.
    fn recorded_by(&self) -> Option<Wall> {
        let seconds = self.recorded_seconds?;
        let possible =
            self.started.unix_seconds() <= seconds && seconds <= self.exited.unix_seconds();
        possible.then(|| Wall::from_unix_micros((seconds + 1) * 1_000_000))
    }
}

/// Which of the failures, given in the order in which they were seen, came first (*G3*).
///
/// Failures that the agent did not cause come before those that it did, and an earlier exit before
/// a later one. One thing beats the order of exits: a worker may fail long before its process ends
/// (in a slow clean-up), and its peers fail meanwhile because of it. So a worker whose error file
/// says that it failed before another one exited comes before that one. Error files count whole
/// seconds; where those leave a doubt, the order of exits decides.
///
/// Returns 0 for an empty list.
pub fn root_cause(failures: &[FailureTrace]) -> usize {
    let ours = |failure: &FailureTrace| failure.stopped_by_agent;
    let first_exit = failures.iter().position(|failure| !ours(failure));
    let first_exit = first_exit.unwrap_or(0);
    let Some(first) = failures.get(first_exit) else {
        return 0;
    };
    let failed_by = first
        .recorded_by()
        .map_or(first.exited, |recorded| recorded.min(first.exited));
    failures
        .iter()
        .enumerate()
        .filter_map(|(index, failure)| Some((failure.recorded_by()?, index)))
        .filter(|&(recorded, index)| index != first_exit && recorded < failed_by)
        .min()
        .map_or(first_exit, |(_, index)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure that was seen so many milliseconds after the start at second 1000.
    fn failure(exited_millis: i64, stopped: bool, recorded: Option<i64>) -> FailureTrace {
        FailureTrace {
            started: Wall::from_unix_micros(1_000_000_000),
            exited: Wall::from_unix_micros(1_000_000_000 + exited_millis * 1_000),
            stopped_by_agent: stopped,
            recorded_seconds: recorded,
        }
    }

    #[test]
    fn the_first_failure_that_the_agent_did_not_cause() {
        let cases: &[(&[FailureTrace], usize, &str)] = &[
            (&[], 0, "nothing"),
            (
                &[failure(20, false, None), failure(40, true, None)],
                0,
                "plain",
            ),
            (
                &[failure(20, true, None), failure(40, false, None)],
                1,
                "not ours",
            ),
            (
                &[failure(20, true, None), failure(40, true, None)],
                0,
                "all ours",
            ),
            (
                &[
                    failure(5_000, false, None),
                    failure(5_100, true, Some(1_002)),
                ],
                1,
                "the stopped one had recorded its failure three seconds before",
            ),
            (
                &[
                    failure(5_100, false, None),
                    failure(5_200, true, Some(1_005)),
                ],
                0,
                "recorded within the same second: exits decide",
            ),
            (
                &[
                    failure(5_000, false, Some(1_002)),
                    failure(5_100, true, Some(1_002)),
                ],
                0,
                "both recorded in the same second: exits decide",
            ),
            (
                &[failure(5_000, false, None), failure(5_100, true, Some(7))],
                0,
                "a record from before the worker was started proves nothing",
            ),
        ];
        for (failures, expected, why) in cases {
            assert_eq!(root_cause(failures), *expected, "{why}");
        }
    }

    #[test]
    fn numbers_are_the_references() {
        assert_eq!(Exit::Code(44).as_number(), 44);
        assert_eq!(Exit::Signal(9).as_number(), -9);
        assert!(Exit::Code(0).is_success());
    }
}
