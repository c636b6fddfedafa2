//! The check of a node before it joins a round: which end of its command lets the node take part.

use std::time::Duration;

/// The end of the command of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckEnd {
    /// With this exit code.
    Exited(i32),
    /// By this signal (number).
    Signalled(i32),
    /// Not within this time; it was killed.
    TimedOut(Duration),
    /// It could not be started, for this reason.
    NotStarted(String),
}

/// Decides whether the node takes part: only if the command has ended with 0. `last` is the last line that it
/// printed.
///
/// # Errors
///
/// The reason for which the node withdraws, as a clause.
pub fn judge(end: &CheckEnd, last: Option<&str>) -> Result<(), String> {
    let reason = match end {
        CheckEnd::Exited(0) => return Ok(()),
        CheckEnd::Exited(code) => format!("it ended with {code}"),
        CheckEnd::Signalled(number) => {
            format!("it was ended by {}", rdzv_core::signal::in_words(*number))
        }
        CheckEnd::TimedOut(limit) => format!("it did not end within {} s", limit.as_secs_f64()),
        CheckEnd::NotStarted(error) => format!("it cannot be started: {error}"),
    };
    Err(match last.map(str::trim).filter(|line| !line.is_empty()) {
        Some(line) => format!("{reason}; its last line: {line}"),
        None => reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_with_0_lets_a_node_take_part() {
        assert_eq!(judge(&CheckEnd::Exited(0), Some("all is well")), Ok(()));
        for (end, last, reason) in [
            (
                CheckEnd::Exited(3),
                Some("GPU 2: fatal error\n"),
                "it ended with 3; its last line: GPU 2: fatal error",
            ),
            (CheckEnd::Signalled(9), Some(" "), "it was ended by SIGKILL"),
            (
                CheckEnd::TimedOut(Duration::from_millis(1500)),
                None,
                "it did not end within 1.5 s",
            ),
            (
                CheckEnd::NotStarted("no sh".to_owned()),
                None,
                "it cannot be started: no sh",
            ),
        ] {
            assert_eq!(judge(&end, last), Err(reason.to_owned()), "{end:?}");
        }
    }
}
