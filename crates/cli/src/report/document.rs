//! The verdict as JSON, for `--report`. The keys are described in `docs/report.md`.

use std::borrow::Cow;

use jiff::Timestamp;
use rdzv_agent::{AgentError, Cause, Evidence, Failure, Outcome, Verdict};
use rdzv_core::time::Wall;
use serde::Serialize;

use crate::exit::{Exit, Refusal};

/// What stays the same when keys are added.
const VERSION: u32 = 1;

/// The whole file.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    version: u32,
    run_id: Option<&'a str>,
    outcome: &'static str,
    exit_code: u8,
    restart_count: u32,
    title: Option<&'a str>,
    host: &'a str,
    first_failure: Option<Cow<'a, Failure>>,
    failures: Vec<Entry<'a>>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    record: Cow<'a, Failure>,
    secondary: bool,
}

impl<'a> Document<'a> {
    /// Of a run that has ended. `title` is the script, module or program.
    pub(crate) fn of_run(
        run_id: &'a str,
        title: &'a str,
        host: &'a str,
        outcome: &Outcome,
        verdict: &'a Verdict,
        exit_code: u8,
    ) -> Self {
        let (word, error) = match outcome {
            Outcome::Succeeded => ("succeeded", None),
            Outcome::Failed { .. } => ("failed", None),
            Outcome::Signalled { signal, .. } => (
                "signalled",
                Some(format!(
                    "SignalException: Process {} got signal: {signal}",
                    rdzv_agent::launcher_pid()
                )),
            ),
            Outcome::Error(error) => {
                let failed = matches!(error, AgentError::PeerFailed { .. });
                let word = if failed { "failed" } else { "error" };
                (word, Some(format!("{}: {error}", error.class())))
            }
        };
        let entry = |(index, failure): (usize, &'a Failure)| Entry {
            record: Cow::Borrowed(failure),
            secondary: index > 0,
        };
        Self {
            version: VERSION,
            run_id: Some(run_id),
            outcome: word,
            exit_code,
            restart_count: verdict.restart_count,
            title: Some(title),
            host,
            first_failure: verdict.first().map(Cow::Borrowed),
            failures: verdict.failures.iter().enumerate().map(entry).collect(),
            error,
        }
    }

    /// Of a launch that was refused before it began.
    pub(crate) fn of_refusal(run_id: Option<&'a str>, host: &'a str, refusal: &Refusal) -> Self {
        let exit = match refusal {
            Refusal::Raised(_) => Exit::Failure,
            Refusal::Usage(_) => Exit::Usage,
        };
        Self {
            version: VERSION,
            run_id,
            outcome: "error",
            exit_code: exit.code(),
            restart_count: 0,
            title: None,
            host,
            first_failure: None,
            failures: Vec::new(),
            error: Some(refusal.to_string()),
        }
    }

    /// Of a launch whose agent was killed; `text` says how.
    pub(crate) fn of_lost_agent(
        run_id: Option<&'a str>,
        title: &'a str,
        host: &'a str,
        text: &str,
        exit_code: u8,
    ) -> Self {
        let now = Timestamp::now().as_microsecond();
        let record = Failure {
            cause: Cause::Agent {
                text: text.to_owned(),
            },
            evidence: Evidence {
                host: host.to_owned(),
                seen: Some(Wall::from_unix_micros(now)),
                ..Evidence::default()
            },
        };
        Self {
            version: VERSION,
            run_id,
            outcome: "error",
            exit_code,
            restart_count: 0,
            title: Some(title),
            host,
            first_failure: Some(Cow::Owned(record.clone())),
            failures: vec![Entry {
                record: Cow::Owned(record),
                secondary: false,
            }],
            error: Some(format!("RuntimeError: {text}")),
        }
    }

    /// The text, with a newline at its end.
    pub(crate) fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .expect("a document has text keys only, so it is JSON");
        text.push('\n');
        text
    }
}
