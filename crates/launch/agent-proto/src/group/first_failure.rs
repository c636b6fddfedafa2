//! The choice of the first failure of a group (*INV-G3*).

use rdzv_core::time::Wall;

use super::cause::Cause;
use super::diagnosis::{is_loss_of_a_peer, own_exception};
use super::evidence::Evidence;
use super::failure::Failure;

/// Returns the index of the failure that came first, or 0 if there are none.
///
/// `failures` are in the order in which the agent saw them. `earliest` chooses one. If that failure
/// only reports the loss of a peer, the first failure with another cause counts, if there is
/// one. A stop by the agent is no such cause. For that choice, an exception on the stderr of a
/// worker that the agent stopped becomes the worker's cause.
pub fn first_failure(failures: &mut [Failure]) -> usize {
    let evidence: Vec<&Evidence> = failures.iter().map(|failure| &failure.evidence).collect();
    let first = earliest(&evidence);
    if !failures
        .get(first)
        .is_some_and(|first| is_loss_of_a_peer(&first.cause))
    {
        return first;
    }
    for failure in failures.iter_mut() {
        if matches!(failure.cause, Cause::StoppedByAgent { .. })
            && let Some(cause) = own_exception(&failure.evidence.stderr_tail)
        {
            failure.cause = cause;
        }
    }
    let has_own_cause = |Failure { cause, evidence }: &Failure| {
        let killed_by_agent = evidence.stopped_by_agent && matches!(cause, Cause::Signal { .. });
        let stopped = matches!(cause, Cause::StoppedByAgent { .. });
        !killed_by_agent && !stopped && !is_loss_of_a_peer(cause)
    };
    failures.iter().position(has_own_cause).unwrap_or(first)
}

/// Returns the index of the first failure by time.
///
/// `failures` are in the order in which the agent saw them. Workers that the agent stopped come
/// after all others, and an earlier exit comes before a later one.
///
/// One observation outweighs the order of exits. A worker may fail long before its process exits,
/// because its clean-up is slow, and its peers fail because of that. A worker comes first if its
/// error file shows that it failed before the worker that exited first. Error files count whole
/// seconds; in doubt, the order of exits decides.
fn earliest(failures: &[&Evidence]) -> usize {
    let first_exit = failures
        .iter()
        .position(|failure| !failure.stopped_by_agent);
    let first_exit = first_exit.unwrap_or(0);
    let Some(first) = failures.get(first_exit) else {
        return 0;
    };
    let exited = first.seen.unwrap_or_default();
    let failed_by = recorded_by(first).map_or(exited, |recorded| recorded.min(exited));
    failures
        .iter()
        .enumerate()
        .filter_map(|(index, failure)| Some((recorded_by(failure)?, index)))
        .filter(|&(recorded, index)| index != first_exit && recorded < failed_by)
        .min()
        .map_or(first_exit, |(_, index)| index)
}

/// Returns the latest failure time that the worker's error file allows.
/// `None` if the recorded time cannot be true: a worker cannot fail before its start or after its
/// exit.
fn recorded_by(evidence: &Evidence) -> Option<Wall> {
    let seconds = evidence.recorded_seconds()?;
    let possible =
        evidence.started?.unix_seconds() <= seconds && seconds <= evidence.seen?.unix_seconds();
    possible.then(|| Wall::from_unix_micros((seconds + 1) * 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::evidence::ErrorFile;

    /// Returns a failure seen this many milliseconds after the start.
    /// The start is at second 1000.
    fn failure(exited_millis: i64, stopped: bool, recorded: Option<i64>) -> Evidence {
        let file = |seconds: i64| {
            let text = format!(r#"{{"message": "m", "timestamp": {seconds}}}"#);
            ErrorFile::parse("error.json".into(), &text)
        };
        Evidence {
            started: Some(Wall::from_unix_micros(1_000_000_000)),
            seen: Some(Wall::from_unix_micros(
                1_000_000_000 + exited_millis * 1_000,
            )),
            stopped_by_agent: stopped,
            error_file: recorded.map(file),
            ..Evidence::default()
        }
    }

    #[test]
    fn the_first_failure_that_the_agent_did_not_cause() {
        // Each entry: milliseconds of an exit, whether the agent caused it, seconds of its record.
        type Exits<'a> = &'a [(i64, bool, Option<i64>)];
        let cases: &[(Exits<'_>, usize, &str)] = &[
            (&[], 0, "nothing"),
            (&[(20, false, None), (40, true, None)], 0, "plain"),
            (&[(20, true, None), (40, false, None)], 1, "not ours"),
            (&[(20, true, None), (40, true, None)], 0, "all ours"),
            (
                &[(5_000, false, None), (5_100, true, Some(1_002))],
                1,
                "the stopped one had recorded its failure three seconds before",
            ),
            (
                &[(5_100, false, None), (5_200, true, Some(1_005))],
                0,
                "recorded within the same second: exits decide",
            ),
            (
                &[(5_000, false, Some(1_002)), (5_100, true, Some(1_002))],
                0,
                "both recorded in the same second: exits decide",
            ),
            (
                &[(5_000, false, None), (5_100, true, Some(7))],
                0,
                "a record from before the worker was started proves nothing",
            ),
        ];
        for (exits, expected, why) in cases {
            let failures = exits.iter();
            let failures =
                failures.map(|&(millis, stopped, recorded)| failure(millis, stopped, recorded));
            let failures: Vec<Evidence> = failures.collect();
            assert_eq!(earliest(&Vec::from_iter(&failures)), *expected, "{why}");
        }
    }

    #[test]
    fn the_loss_of_a_peer_gives_way_to_what_that_peer_says() {
        let lost = Cause::exception("RuntimeError: [gloo] Connection closed by peer [::1]:4242");
        let own = Cause::exception("ValueError: boom");
        let stopped = Cause::StoppedByAgent { number: -15 };
        let segfault = Cause::Signal { signal: 11 };
        let first = |failures: &[(bool, &Cause)]| {
            let failure = |&(stopped, cause): &(bool, &Cause)| Failure {
                cause: cause.clone(),
                evidence: failure(20, stopped, None),
            };
            first_failure(&mut failures.iter().map(failure).collect::<Vec<_>>())
        };
        assert_eq!(first(&[(false, &lost), (false, &lost), (true, &own)]), 2);
        assert_eq!(
            first(&[(false, &lost), (true, &stopped), (false, &segfault)]),
            2
        );
        assert_eq!(first(&[(false, &lost), (true, &stopped)]), 0);
        assert_eq!(first(&[(false, &own), (false, &segfault)]), 0);
        assert_eq!(first(&[]), 0);
    }
}
