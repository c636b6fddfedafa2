//! The end of a launch: the failure report, the report file, the exit code.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use jiff::tz::TimeZone;
use rdzv_agent::observe::NodeReport;
use rdzv_agent::{AgentEnd, AgentError, LogPlan, Outcome};
use rdzv_console::failure::{self, Failed};
use rdzv_core::{env, signal};
use tracing::error;

use super::lost_agent::leave_for;
use crate::args::{Launcher, Parsed, Program, parse, usage};
use crate::exit::{self, Exit, ExitCodes, Refusal};
use crate::launch::{Environment, Machine, RunArgs, ThisHost};
use crate::report::{self, Document, ReportFile};
use crate::terminal::{
    FINAL_FLUSH, complain, finish_lines, finish_lines_unless_signalled, start_lines,
};

/// The kind of a cause that is not part of the agent's error.
const NODE_LOST: &str = "node_lost";

/// A run that is over.
pub(super) struct Ended {
    pub(super) report: NodeReport,
    pub(super) title: String,
    pub(super) logs: LogPlan,
    /// The signals that the run has handled, and whether one has come.
    pub(super) signals: Vec<i32>,
    pub(super) signalled: bool,
    pub(super) outcome: Outcome,
}

impl Ended {
    /// Whether the stderr of a worker was on the console.
    fn stderr_was_seen(&self, local_rank: u32) -> bool {
        let logs = &self.logs;
        let shown = logs
            .console_ranks
            .as_ref()
            .is_none_or(|ranks| ranks.contains(&local_rank));
        let teed = logs.tee.of(local_rank).stderr;
        shown && (teed || !logs.redirects.of(local_rank).stderr)
    }
}

/// The results that the user asked for: the report file, if there is to be one, and the exit code.
pub(super) struct Report {
    /// Beside the file, the path as it was given.
    file: Option<(PathBuf, ReportFile)>,
    exit_codes: ExitCodes,
    run_id: Option<String>,
}

impl Report {
    /// Reads the flags and makes sure that the file can be written.
    pub(super) fn open(arguments: &RunArgs, machine: &dyn Machine) -> Result<Self, Refusal> {
        let (path, exit_codes) = arguments.report.resolve(machine)?;
        let open = |path: PathBuf| match ReportFile::open(&path) {
            Ok(file) => Ok((path, file)),
            Err(error) => {
                let problem = format!("{} cannot be written: {error}", path.display());
                Err(Refusal::argument("--report", &problem))
            }
        };
        Ok(Self {
            file: path.map(open).transpose()?,
            exit_codes,
            run_id: arguments.rendezvous.rdzv_id.clone(),
        })
    }

    /// The launch was refused before it began.
    pub(super) fn refused(&self, refusal: &Refusal) {
        self.write(|| Document::of_refusal(self.run_id.as_deref(), refusal));
    }

    /// Writes the file, if there is to be one.
    fn write(&self, document: impl FnOnce() -> Document) {
        if let Some((path, file)) = &self.file
            && let Err(error) = file.write(&document().text())
        {
            let path = path.display();
            complain(&format!("rdzv: write the report {path}: {error}"));
        }
    }
}

fn print_verdict(ended: &Ended) {
    let verdict = &ended.report.verdict;
    let local_rank = verdict.first().and_then(|first| first.evidence.local_rank);
    let run = Failed {
        failures: &verdict.failures,
        here: verdict.here,
        finality: verdict.finality,
        stderr_seen: verdict.here && local_rank.is_some_and(|rank| ended.stderr_was_seen(rank.0)),
        ..Failed::default()
    };
    for line in failure::verdict(&run, None) {
        complain(&line.text());
    }
}

/// Reports the end of the run.
pub(super) fn conclude(ended: &Ended, report: &Report, environment: &Environment) -> ExitCode {
    let outcome = &ended.outcome;
    let verdict = &ended.report.verdict;
    let code = exit::of_launch(report.exit_codes, outcome, verdict);
    report.write(|| {
        let run_id = &ended.report.run_id;
        Document::of_run(run_id, &ended.title, outcome, verdict, code)
    });
    if let Some(path) = error_file(environment)
        && let Err(error) = rdzv_agent::write_launcher_error_file(&path, outcome)
    {
        not_written(&path, &error);
    }
    match outcome {
        Outcome::Succeeded => {}
        Outcome::Failed {
            failures,
            root_cause,
            ..
        } => {
            print_verdict(ended);
            let zone = TimeZone::system();
            let block = report::render(&ended.title, failures, *root_cause, &zone);
            complain(&block);
        }
        Outcome::Signalled {
            signal,
            workers_started: false,
        } => {
            finish_lines(Some(FINAL_FLUSH));
            rdzv_agent::end_like(ExitStatus::from_raw(*signal))
        }
        Outcome::Signalled { signal, .. } => {
            complain(&format!(
                "torch.distributed.elastic.multiprocessing.api.SignalException: Process {} got \
                 signal: {signal}",
                rdzv_agent::launcher_pid()
            ));
        }
        Outcome::Error(error) => {
            let first = verdict.first();
            let more_than_this = first.is_some_and(|first| first.cause.kind() == NODE_LOST);
            if more_than_this || !verdict.here {
                print_verdict(ended);
            }
            complain(&format!("{}: {error}", error.class()));
        }
    }
    // Somebody who stops the run, or kills the keeper, wants all of this to end, reader or not.
    let keeper_lost = matches!(outcome, Outcome::Error(AgentError::KeeperLost));
    if ended.signalled || keeper_lost {
        finish_lines(Some(FINAL_FLUSH));
        std::process::exit(code.into());
    }
    if !finish_lines_unless_signalled(&ended.signals) {
        std::process::exit(code.into());
    }
    code.into()
}

/// Reports the refusal of a launch.
pub(super) fn refuse(refusal: &Refusal, launcher: Launcher, environment: &Environment) -> ExitCode {
    let program = launcher.program();
    match refusal {
        Refusal::Raised(raised) => {
            let message = raised.to_string();
            write_error_file(environment, &message);
            complain(&message);
            Exit::Failure.into()
        }
        Refusal::Usage(text) => {
            complain(&format!("{}\n{program}: error: {text}", usage(program)));
            Exit::Usage.into()
        }
    }
}

/// Writes an error of the launcher to the error file, if there is one.
fn write_error_file(environment: &Environment, message: &str) {
    if let Some(path) = error_file(environment)
        && let Err(error) = rdzv_agent::write_refusal_to_error_file(&path, message)
    {
        not_written(&path, &error);
    }
}

/// The error file for the process that started the launcher.
fn error_file(environment: &Environment) -> Option<PathBuf> {
    let path = environment.filled(env::TORCHELASTIC_ERROR_FILE)?;
    Some(PathBuf::from(path))
}

fn not_written(path: &Path, error: &io::Error) {
    error!(
        "write the launcher's error file {}: {error}",
        path.display()
    );
}

/// Signals that an agent does not handle. By others it may end after it has reported everything.
const FATAL: [&str; 7] = [
    "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS",
];

/// Reports in place of an agent that was killed: on stderr and in the files that were asked for.
/// Called by the keeper.
pub(super) fn conclude_lost_agent(called: &OsStr, end: &AgentEnd) {
    let killed_by = end
        .status
        .signal()
        .and_then(|number| Some((number, signal::name(number)?)))
        .filter(|(_, name)| FATAL.contains(name));
    let Some((number, name)) = killed_by else {
        return;
    };
    let text = format!("the agent was ended by {name}; its workers have been killed with it");
    start_lines();
    complain(&format!("rdzv: {text}"));
    let environment = Environment(std::env::vars_os().collect());
    write_error_file(&environment, &format!("RuntimeError: {text}"));
    let words = std::env::args_os().skip(1).collect();
    if let Program::Launch(launcher, words) = Program::of(called, words)
        && let Ok(Parsed::Run(arguments, _)) = parse(launcher, &words, &environment.0)
    {
        let arguments = arguments.run;
        if let Some(pid) = end.pid {
            leave_for(&arguments, &environment, pid);
        }
        let Ok(report) = Report::open(&arguments, &ThisHost) else {
            return;
        };
        let title = arguments.training_script.first().map(OsString::as_os_str);
        let title = title.map(OsStr::to_string_lossy).unwrap_or_default();
        let code = u8::try_from(128 + number).unwrap_or(1);
        let run_id = arguments.rendezvous.rdzv_id.as_deref();
        report.write(|| Document::of_lost_agent(run_id, &title, &text, code));
    }
    finish_lines(Some(FINAL_FLUSH));
}
