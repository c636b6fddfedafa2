//! The reason why no restart follows a failure.

use rdzv_core::signal;
use serde::ser::{Serialize, Serializer};
use thiserror::Error;

/// The reason why a failure of workers has ended the run.
///
/// [`Finality::kind`] is stable, for programs. The text ([`Display`](std::fmt::Display)) is one
/// line for users and may change. The JSON form holds both: `{"kind": "…", "text": "…"}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Finality {
    /// The restart budget is used up. The text is from the first torchelastic.
    #[error("exceeded max_restarts={max_restarts}")]
    BudgetUsed {
        /// Initial number of restarts (`--max-restarts`).
        max_restarts: u32,
    },
    /// A worker exited with a status that a restart cannot fix.
    /// See [`RestartOptions::non_retryable`](super::RestartOptions).
    #[error("{} is not retryable", end_of(*.number))]
    NotRetryable {
        /// The exit code, or minus the number of the signal.
        number: i32,
    },
    /// The kernel holds a worker.
    /// The worker keeps resources that the next attempt would need, so the group forfeits the
    /// remaining restarts.
    #[error("a worker is blocked in the kernel, so a restart cannot help")]
    WorkersHeld,
    /// Workers hang, and `--hang-action fail` asks for no restart.
    #[error("--hang-action fail ends the run when workers hang")]
    HangAction,
    /// Restarts are left, but the other nodes form no further round.
    #[error("another node has ended the run")]
    RunEnded,
}

impl Finality {
    /// Returns the stable name for programs.
    pub fn kind(self) -> &'static str {
        match self {
            Self::BudgetUsed { .. } => "max_restarts_exceeded",
            Self::NotRetryable { .. } => "not_retryable",
            Self::WorkersHeld => "workers_held",
            Self::HangAction => "hang_action",
            Self::RunEnded => "run_ended",
        }
    }
}

/// Describes an exit code, or a signal given as a negative number.
fn end_of(number: i32) -> String {
    match number {
        ..0 => signal::in_words(number.saturating_neg()),
        _ => format!("exit code {number}"),
    }
}

impl Serialize for Finality {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.to_string();
        serializer.collect_map([("kind", self.kind()), ("text", text.as_str())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_and_a_text() {
        for (finality, kind, text) in [
            (
                Finality::BudgetUsed { max_restarts: 3 },
                "max_restarts_exceeded",
                "exceeded max_restarts=3",
            ),
            (
                Finality::NotRetryable { number: 3 },
                "not_retryable",
                "exit code 3 is not retryable",
            ),
            (
                Finality::NotRetryable { number: -6 },
                "not_retryable",
                "SIGABRT is not retryable",
            ),
            (
                Finality::WorkersHeld,
                "workers_held",
                "a worker is blocked in the kernel, so a restart cannot help",
            ),
            (
                Finality::HangAction,
                "hang_action",
                "--hang-action fail ends the run when workers hang",
            ),
            (
                Finality::RunEnded,
                "run_ended",
                "another node has ended the run",
            ),
        ] {
            let expected = serde_json::json!({ "kind": kind, "text": text });
            assert_eq!(serde_json::to_value(finality).unwrap(), expected);
        }
    }
}
