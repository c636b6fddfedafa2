//! The verdict as JSON, for `--report`. The keys are described in `docs/report.md`.

use std::borrow::Cow;

use jiff::Timestamp;
use rdzv_agent::{AgentError, Cause, CauseRecord, FailureRecord, Outcome, Verdict};
use serde::Serialize;

use crate::exit::Refusal;

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
    first_failure: Option<Cow<'a, FailureRecord>>,
    failures: Vec<Entry<'a>>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    record: Cow<'a, FailureRecord>,
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
        let entry = |judged: &'a rdzv_agent::JudgedFailure| Entry {
            record: Cow::Borrowed(&judged.record),
            secondary: judged.secondary,
        };
        Self {
            version: VERSION,
            run_id: Some(run_id),
            outcome: word,
            exit_code,
            restart_count: verdict.restart_count,
            title: Some(title),
            host,
            first_failure: verdict.first.as_ref().map(Cow::Borrowed),
            failures: verdict.failures.iter().map(entry).collect(),
            error,
        }
    }

    /// Of a launch that was refused before it began.
    pub(crate) fn of_refusal(
        run_id: Option<&'a str>,
        host: &'a str,
        refusal: &Refusal,
        exit_code: u8,
    ) -> Self {
        Self {
            version: VERSION,
            run_id,
            outcome: "error",
            exit_code,
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
        let record = FailureRecord {
            host: host.to_owned(),
            time: format!("{:.6}", Timestamp::now()),
            cause: CauseRecord::from(&Cause::Agent {
                text: text.to_owned(),
            }),
            ..FailureRecord::default()
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
