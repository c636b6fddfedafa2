//! The end of a launch: the failure report, the report file, the exit code.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use jiff::tz::TimeZone;
use rdzv_agent::config::LogPlan;
use rdzv_agent::launcher::AgentEnd;
use rdzv_agent::observe::{NodeReport, TimeClass};
use rdzv_agent::{AgentError, Outcome};
use rdzv_console::LineRole;
use rdzv_console::failure::{self, Failed};
use rdzv_console::line::headed;
use rdzv_console::preemption;
use rdzv_console::remedy::Surroundings;
use rdzv_console::speaker::{self, End, ShownPart};
use rdzv_core::{env, signal};
use tracing::error;

use super::lost_agent::leave_for;
use crate::args::{self, Launcher, Parsed, Program, parse, usage};
use crate::exit::{self, ExitCodes, Refusal};
use crate::face::Face;
use crate::launch::{Environment, Hooks, Machine, PreemptionArgs, RunArgs, ThisHost};
use crate::observe::hooks;
use crate::observe::story::Story;
use crate::report::{Document, ReportFile};
use crate::terminal::{
    FINAL_FLUSH, Form, complain, finish_lines, finish_lines_unless_signalled, say, start_lines,
};

/// Kind of the cause of a lost node, which the agent's error does not name.
const NODE_LOST: &str = "node_lost";

/// Kind of a cause that is the agent's own error.
const AGENT_ERROR: &str = "agent_error";

/// Form of lines that other programs search for: no colours, no wrapping.
const PLAIN: Form = Form {
    width: None,
    is_coloured: false,
};

pub(super) struct Ended {
    pub(super) report: NodeReport,
    pub(super) story: Story,
    pub(super) title: String,
    pub(super) logs: LogPlan,
    /// Signals that the run handles.
    pub(super) signals: Vec<i32>,
    /// `true` if the run received one of them, or a notice of preemption.
    pub(super) signalled: bool,
    pub(super) outcome: Outcome,
    /// Settings that are already set, which advice must not name.
    pub(super) active: Vec<String>,
    /// Interpreter of the workers, and its origin.
    pub(super) interpreter: Option<(String, String)>,
}

impl Ended {
    /// `true` if the stderr of a worker was on the console.
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

/// Results that the user requested: the report file, if any, and the exit code.
pub(super) struct Report {
    /// Path as the user specified it, and the file.
    file: Option<(PathBuf, ReportFile)>,
    exit_codes: ExitCodes,
    pub(super) hooks: Hooks,
    run_id: Option<String>,
    face: Face,
    preemption: PreemptionArgs,
    /// `true` if all nodes may print to the same output.
    is_shared: bool,
}

impl Report {
    /// Reads the flags and makes sure that the file can be written.
    pub(super) fn open(
        arguments: &RunArgs,
        face: Face,
        machine: &dyn Machine,
    ) -> Result<Self, Refusal> {
        let (path, exit_codes) = arguments.report.resolve(machine)?;
        let open = |path: PathBuf| match ReportFile::open(&path) {
            Ok(file) => Ok((path, file)),
            Err(error) => {
                let problem = format!("cannot write {}: {error}", path.display());
                Err(Refusal::argument("--report", &problem))
            }
        };
        Ok(Self {
            file: path.map(open).transpose()?,
            exit_codes,
            hooks: arguments.report.hooks()?,
            run_id: arguments.rendezvous.rdzv_id.clone(),
            face,
            preemption: arguments.preemption.clone(),
            is_shared: arguments.scheduled.step_node.is_some(),
        })
    }

    /// Returns the path of the report file, if the user requested one.
    fn path(&self) -> Option<String> {
        let (path, _) = self.file.as_ref()?;
        Some(path.display().to_string())
    }

    /// Writes the report of a launch that was refused before it began.
    pub(super) fn refused(&self, refusal: &Refusal) {
        self.write(|| Document::of_refusal(self.run_id.as_deref(), refusal, self.face));
    }

    /// Runs the command for failures, if the user requested one.
    fn failed(&self, document: impl FnOnce() -> Document) {
        if let Some(hook) = &self.hooks.on_failure {
            hooks::run(hook, &document());
        }
    }

    fn write(&self, document: impl FnOnce() -> Document) {
        if let Some((path, file)) = &self.file
            && let Err(error) = file.write(&document().text())
        {
            let path = path.display();
            complain(&format!("rdzv: cannot write the report {path}: {error}"));
        }
    }
}

impl Ended {
    /// Returns the facts about a failed run; `report` knows the path of the file.
    fn failed(&self, report: &Report) -> Failed<'_> {
        let verdict = &self.report.verdict;
        let local_rank = verdict
            .first()
            .and_then(|first| first.evidence.local_rank)
            .filter(|_| verdict.here);
        Failed {
            failures: &verdict.failures,
            here: verdict.here,
            finality: verdict.finality,
            stderr_seen: local_rank.is_some_and(|rank| self.stderr_was_seen(rank.0)),
            attempts: self.story.attempts(),
            logs: local_rank.and_then(|rank| self.story.output_of(rank.0)),
            report: report.path(),
            surroundings: self.surroundings(report),
        }
    }

    /// Returns the facts on which the advice depends.
    fn surroundings(&self, report: &Report) -> Surroundings {
        let mut active = self.active.clone();
        active.extend(report.file.is_some().then(|| "--report".to_owned()));
        let names = ThisHost.names(&ThisHost.working_directory());
        let names = names.iter().filter_map(|name| name.to_str());
        let modules = names.filter(|name| match name.strip_suffix(".py") {
            Some(_) => true,
            None => Path::new(name).is_dir(),
        });
        let first = self.report.verdict.first();
        let text = first.map(|first| first.cause.to_string().to_lowercase());
        let text = text.filter(|text| {
            ["eaddrinuse", "address already in use"]
                .iter()
                .any(|it| text.contains(it))
        });
        let port = text.as_deref().and_then(|text| text.split_once("port: "));
        let port = port.and_then(|(_, rest)| {
            rest.split(|it: char| !it.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        });
        Surroundings {
            active,
            interpreter: self.interpreter.clone(),
            modules: modules
                .map(|name| name.trim_end_matches(".py").to_owned())
                .collect(),
            port_user: port.and_then(rdzv_store::port_user),
        }
    }
}

/// Reports the end of the run, and returns the exit code.
pub(super) fn conclude(ended: &Ended, report: &Report, environment: &Environment) -> ExitCode {
    let outcome = &ended.outcome;
    let verdict = &ended.report.verdict;
    let code = match outcome {
        Outcome::Preempted { in_order: true, .. } => report.preemption.preempt_exit_code,
        _ => exit::of_launch(report.exit_codes, outcome, verdict),
    };
    let document = || Document::of_run(&ended.report, &ended.title, outcome, code);
    report.write(document);
    match error_file(environment) {
        Some(path) => {
            if let Err(error) = rdzv_agent::launcher::write_launcher_error_file(&path, outcome) {
                not_written(&path, &error);
            }
        }
        None if report.face == Face::Torchrun => not_copied(outcome),
        None => {}
    }
    // A program that started the launcher reads the report file instead.
    if environment.filled(env::RDZV_CALLER).is_none() {
        match report.face {
            Face::Rdzv => say_the_end(ended, report),
            Face::Torchrun => report_as_torchrun(ended, report),
        }
    }
    // The commands of a stopped run would take time that the process may not have.
    if matches!(outcome, Outcome::Failed { .. } | Outcome::Error(_)) && !ended.signalled {
        report.failed(document);
    }
    if matches!(outcome, Outcome::Preempted { in_order: true, .. })
        && let Some(sentence) = report.preemption.requeue(environment)
    {
        complain(&format!("rdzv: {sentence}"));
    }
    if let Outcome::Signalled {
        signal,
        workers_started: false,
    } = outcome
    {
        finish_lines(Some(FINAL_FLUSH));
        rdzv_agent::launcher::end_like(ExitStatus::from_raw(*signal))
    }
    // After a signal, or without the keeper, the process must end even if nothing reads its output.
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

/// Reports the end in rdzv's own style.
///
/// Prints one sentence, or the first failure with its cause and a remedy. A sentence about the
/// goodput follows if a long run was interrupted. Prints nothing if a signal arrived before the
/// workers were started, or if another node prints the end.
fn say_the_end(ended: &Ended, report: &Report) {
    let form = Form::of_stderr();
    let story = &ended.story;
    let part = if report.is_shared {
        speaker::part(end_here(ended), story.rank())
    } else {
        ShownPart::Full
    };
    let lines = match &ended.outcome {
        _ if part == ShownPart::Nothing => Vec::new(),
        Outcome::Failed { .. } | Outcome::Error(_) if part == ShownPart::Sentence => {
            failure::first(&ended.failed(report), form.width)
        }
        Outcome::Succeeded => story.success().lines(form.width),
        Outcome::Signalled {
            workers_started: false,
            ..
        } => Vec::new(),
        Outcome::Signalled { signal, .. } => story.stopped(*signal, form.width),
        Outcome::Preempted {
            signal,
            used,
            in_order,
        } => preemption::ended(*signal, *used, *in_order, form.width),
        Outcome::Error(error) if is_of_the_agent(ended) => {
            failure::error(&error.to_string(), form.width)
        }
        Outcome::Failed { .. } | Outcome::Error(_) => {
            failure::summary(&ended.failed(report), form.width)
        }
    };
    say(&lines, form);
    if part == ShownPart::Full && was_interrupted(&ended.report) {
        let seconds = &ended.report.goodput.seconds;
        say(&rdzv_console::goodput::lines(seconds, form.width), form);
    }
}

/// Shortest run that has a sentence about its goodput, in seconds.
const LONG: f64 = 10.0;

/// `true` if a long run restarted, stalled, was suspended or repeated steps.
fn was_interrupted(report: &NodeReport) -> bool {
    let lost = [
        TimeClass::Stalled,
        TimeClass::Suspended,
        TimeClass::Repeated,
    ];
    let seconds = &report.goodput.seconds;
    let was_held_up =
        !report.restarts.is_empty() || lost.iter().any(|class| seconds.contains_key(class));
    was_held_up && seconds.values().sum::<f64>() >= LONG
}

/// Returns this node's view of the end, which decides how much the node prints.
fn end_here(ended: &Ended) -> End {
    let verdict = &ended.report.verdict;
    match &ended.outcome {
        Outcome::Succeeded
        | Outcome::Signalled { .. }
        | Outcome::Preempted { in_order: true, .. } => End::InOrder,
        Outcome::Preempted { .. } => End::Here,
        Outcome::Failed { .. } | Outcome::Error(_) => match verdict.first() {
            _ if verdict.here || is_of_the_agent(ended) => End::Here,
            Some(first) if first.cause.kind() == NODE_LOST => End::NodeLost,
            _ => End::Elsewhere {
                is_said: matches!(
                    &ended.outcome,
                    Outcome::Error(AgentError::PeerFailed { .. })
                ),
            },
        },
    }
}

/// `true` if an error of this agent ended the run, not a worker or a node.
fn is_of_the_agent(ended: &Ended) -> bool {
    let first = ended.report.verdict.first();
    first.is_none_or(|first| first.cause.kind() == AGENT_ERROR)
}

/// Reports the end as torchrun does, below the lines of the verdict.
fn report_as_torchrun(ended: &Ended, report: &Report) {
    let verdict = &ended.report.verdict;
    let print_verdict = || say(&failure::verdict(&ended.failed(report), None), PLAIN);
    match &ended.outcome {
        Outcome::Succeeded
        | Outcome::Signalled {
            workers_started: false,
            ..
        } => {}
        Outcome::Failed {
            failures,
            root_cause,
            ..
        } => {
            print_verdict();
            let zone = TimeZone::system();
            let block = crate::report::render(&ended.title, failures, *root_cause, &zone);
            complain(&block);
        }
        Outcome::Signalled { signal, .. } => {
            complain(&format!(
                "torch.distributed.elastic.multiprocessing.api.SignalException: Process {} got \
                 signal: {signal}",
                rdzv_agent::launcher::launcher_pid()
            ));
        }
        Outcome::Preempted {
            signal,
            used,
            in_order,
        } => say(&preemption::ended(*signal, *used, *in_order, None), PLAIN),
        Outcome::Error(error) => {
            let first = verdict.first();
            let more_than_this = first.is_some_and(|first| first.cause.kind() == NODE_LOST);
            if more_than_this || !verdict.here {
                print_verdict();
            }
            // Job scripts search the last line for the class.
            let line = error.to_string().replace("\nhelp: ", "; ");
            complain(&format!("{}: {line}", error.class()));
        }
    }
}

pub(super) fn refuse(
    refusal: &Refusal,
    launcher: Launcher,
    face: Face,
    environment: &Environment,
) -> ExitCode {
    let program = launcher.program();
    if let Refusal::Raised(raised) = refusal {
        write_error_file(environment, &raised.to_string());
    }
    match (face, refusal) {
        (Face::Rdzv, _) => {
            let form = Form::of_stderr();
            let head = format!("{program}: ");
            say(
                &headed(LineRole::Error, &head, refusal.plain(), form.width),
                form,
            );
        }
        (Face::Torchrun, Refusal::Raised(raised)) => complain(&raised.to_string()),
        (Face::Torchrun, text) => {
            complain(&format!("{}\n{program}: error: {text}", usage(program)));
        }
    }
    refusal.exit(face).into()
}

/// Writes an error of the launcher to its error file, if it has one.
fn write_error_file(environment: &Environment, message: &str) {
    if let Some(path) = error_file(environment)
        && let Err(error) = rdzv_agent::launcher::write_refusal_to_error_file(&path, message)
    {
        not_written(&path, &error);
    }
}

/// Returns the error file that the launcher's parent process specified.
fn error_file(environment: &Environment) -> Option<PathBuf> {
    let path = environment.filled(env::TORCHELASTIC_ERROR_FILE)?;
    Some(PathBuf::from(path))
}

fn not_written(path: &Path, error: &io::Error) {
    error!(
        "cannot write the launcher's error file {}: {error}",
        path.display()
    );
}

/// Logs, as torchrun does, that the root cause's error file is not copied.
///
/// The parent process did not specify a file for it.
fn not_copied(outcome: &Outcome) {
    let Outcome::Failed {
        failures,
        root_cause,
        ..
    } = outcome
    else {
        return;
    };
    let first = failures.get(*root_cause);
    if let Some(file) = first.and_then(|first| first.evidence.error_file.as_ref()) {
        error!(
            "no error file defined for parent, to copy child error file ({})",
            file.path.display()
        );
    }
}

/// Signals that an agent does not handle.
///
/// If another signal ends the agent, it may have reported everything already.
const FATAL: [&str; 7] = [
    "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS",
];

/// Acts in place of a killed agent; the keeper calls this function.
///
/// Reports the end on stderr and in the requested files, removes the agent from the rendezvous, and
/// runs the command for failures.
pub(super) fn conclude_lost_agent(called: &OsStr, end: &AgentEnd) {
    let killed_by = end
        .status
        .signal()
        .and_then(|number| Some((number, signal::name(number)?)))
        .filter(|(_, name)| FATAL.contains(name));
    let Some((number, name)) = killed_by else {
        return;
    };
    let text = format!("the agent was killed by {name}, and its workers were killed with it");
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
        let face = args::face(launcher, &words, &environment.0);
        let Ok(report) = Report::open(&arguments, face, &ThisHost) else {
            return;
        };
        let title = arguments.training_script.first().map(OsString::as_os_str);
        let title = title.map(OsStr::to_string_lossy).unwrap_or_default();
        let code = u8::try_from(128 + number).unwrap_or(1);
        let run_id = arguments.rendezvous.rdzv_id.as_deref();
        let document = || Document::of_lost_agent(run_id, &title, &text, code);
        report.write(document);
        report.failed(document);
    }
    finish_lines(Some(FINAL_FLUSH));
}
