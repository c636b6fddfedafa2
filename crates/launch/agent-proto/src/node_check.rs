//! The check of a node before it joins a round.
//!
//! A command decides: the node participates only if the command exits with 0.

use std::time::Duration;

/// Outcome of the command of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckEnd {
    /// The command exited with this code.
    Exited(i32),
    /// A signal with this number killed the command.
    Signalled(i32),
    /// The command did not exit within this time, so the agent killed it.
    TimedOut(Duration),
    /// The agent could not start the command, for this reason.
    NotStarted(String),
}

/// Decides whether the node participates: only if the command exited with 0.
/// `last` is the last line that the command printed.
///
/// # Errors
///
/// Returns the reason why the node withdraws, as a clause.
pub fn judge(end: &CheckEnd, last: Option<&str>) -> Result<(), String> {
    let reason = match end {
        CheckEnd::Exited(0) => return Ok(()),
        CheckEnd::Exited(code) => format!("it exited with code {code}"),
        CheckEnd::Signalled(number) => {
            format!("it was killed by {}", rdzv_core::signal::in_words(*number))
        }
        CheckEnd::TimedOut(limit) => format!("it did not exit within {} s", limit.as_secs_f64()),
        CheckEnd::NotStarted(error) => format!("it could not be started: {error}"),
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
                "it exited with code 3; its last line: GPU 2: fatal error",
            ),
            (
                CheckEnd::Signalled(9),
                Some(" "),
                "it was killed by SIGKILL",
            ),
            (
                CheckEnd::TimedOut(Duration::from_millis(1500)),
                None,
                "it did not exit within 1.5 s",
            ),
            (
                CheckEnd::NotStarted("no sh".to_owned()),
                None,
                "it could not be started: no sh",
            ),
        ] {
            assert_eq!(judge(&end, last), Err(reason.to_owned()), "{end:?}");
        }
    }
}
