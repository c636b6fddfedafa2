//! The verdict as JSON, for `--report` and the hooks.
//!
//! `docs/report.md` describes the keys.

use std::collections::BTreeMap;
use std::slice;

use jiff::Timestamp;
use rdzv_agent::launcher::host;
use rdzv_agent::observe::{NodeReport, RestartRow, TimeClass};
use rdzv_agent::outcome::{Cause, Evidence, Failure, Finality};
use rdzv_agent::{AgentError, Outcome};
use rdzv_core::time::Wall;
use serde::Serialize;

use crate::exit::Refusal;
use crate::face::Face;

/// Version of the format, which does not change when keys are added.
const VERSION: u32 = 1;

#[derive(Debug, Serialize)]
pub(crate) struct Document {
    version: u32,
    run_id: Option<String>,
    outcome: &'static str,
    exit_code: u8,
    restart_count: u32,
    suspended_seconds: f64,
    goodput: Option<f64>,
    seconds: BTreeMap<TimeClass, f64>,
    restarts: Vec<RestartRow>,
    finality: Option<Finality>,
    title: Option<String>,
    host: String,
    first_failure: Option<Failure>,
    failures: Vec<Entry>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Entry {
    #[serde(flatten)]
    record: Failure,
    secondary: bool,
}

impl Document {
    fn new(
        (run_id, title): (Option<&str>, Option<&str>),
        outcome: &'static str,
        exit_code: u8,
        error: Option<String>,
        failures: &[Failure],
    ) -> Self {
        let entry = |(index, failure): (usize, &Failure)| Entry {
            record: failure.clone(),
            secondary: index > 0,
        };
        Self {
            version: VERSION,
            run_id: run_id.map(str::to_owned),
            outcome,
            exit_code,
            restart_count: 0,
            suspended_seconds: 0.0,
            goodput: None,
            seconds: BTreeMap::new(),
            restarts: Vec::new(),
            finality: None,
            title: title.map(str::to_owned),
            host: host::full_name(),
            first_failure: failures.first().cloned(),
            failures: failures.iter().enumerate().map(entry).collect(),
            error,
        }
    }

    /// Returns the report of a run that has ended.
    ///
    /// `title` is the script, module or program.
    pub(crate) fn of_run(
        report: &NodeReport,
        title: &str,
        outcome: &Outcome,
        exit_code: u8,
    ) -> Self {
        let verdict = &report.verdict;
        let (word, error) = match outcome {
            Outcome::Succeeded => ("succeeded", None),
            Outcome::Failed { .. } => ("failed", None),
            Outcome::Signalled { signal, .. } => (
                "signalled",
                Some(format!(
                    "SignalException: Process {} got signal: {signal}",
                    rdzv_agent::launcher::launcher_pid()
                )),
            ),
            Outcome::Preempted {
                signal,
                used,
                in_order,
            } => (
                if *in_order { "preempted" } else { "signalled" },
                Some(format!(
                    "preempted by {}; the workers exited after {:.1} s",
                    rdzv_core::signal::in_words(*signal),
                    used.as_secs_f64()
                )),
            ),
            Outcome::Error(error) => {
                let failed = matches!(error, AgentError::PeerFailed { .. });
                let word = if failed { "failed" } else { "error" };
                (word, Some(format!("{}: {error}", error.class())))
            }
        };
        let names = (Some(report.run_id.as_str()), Some(title));
        Self {
            restart_count: verdict.restart_count,
            finality: verdict.finality,
            ..Self::new(names, word, exit_code, error, &verdict.failures)
        }
        .with_times(report)
    }

    /// Returns the report of a run that continues with a restart of its workers.
    ///
    /// `reason` is the change of membership that leads to it, if no failure does.
    pub(crate) fn of_restart(
        report: &NodeReport,
        title: &str,
        restart_count: u32,
        failure: Option<&Failure>,
        reason: Option<&str>,
    ) -> Self {
        let names = (Some(report.run_id.as_str()), Some(title));
        let reason = reason.map(str::to_owned);
        let failures = failure.map_or(&[][..], slice::from_ref);
        Self {
            restart_count,
            ..Self::new(names, "restarting", 0, reason, failures)
        }
        .with_times(report)
    }

    fn with_times(self, report: &NodeReport) -> Self {
        let now = Timestamp::now().as_microsecond() as f64 / 1e6;
        Self {
            suspended_seconds: report.suspended_seconds,
            goodput: report.goodput.share(now),
            seconds: report.goodput.at(now),
            restarts: report.restarts.clone(),
            ..self
        }
    }

    /// Returns the report of a launch that was refused before it began.
    pub(crate) fn of_refusal(run_id: Option<&str>, refusal: &Refusal, face: Face) -> Self {
        let exit = refusal.exit(face).code();
        let error = match face {
            Face::Rdzv => refusal.plain().to_owned(),
            Face::Torchrun => refusal.to_string(),
        };
        Self::new((run_id, None), "error", exit, Some(error), &[])
    }

    /// Returns the report of a launch whose agent was killed as `text` states.
    pub(crate) fn of_lost_agent(
        run_id: Option<&str>,
        title: &str,
        text: &str,
        exit_code: u8,
    ) -> Self {
        let failure = Failure {
            cause: Cause::Agent {
                text: text.to_owned(),
            },
            evidence: Evidence {
                host: host::full_name(),
                seen: Some(Wall::from_unix_micros(Timestamp::now().as_microsecond())),
                ..Evidence::default()
            },
        };
        let error = Some(format!("RuntimeError: {text}"));
        Self::new((run_id, Some(title)), "error", exit_code, error, &[failure])
    }

    /// Returns the JSON text, with a newline at its end.
    pub(crate) fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .expect("a document has text keys only, so it is JSON");
        text.push('\n');
        text
    }
}
