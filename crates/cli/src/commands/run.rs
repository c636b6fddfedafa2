//! `rdzv run`, `torchrun` and `rdzv launch-compat`.
//!
//! A launch is two processes: the keeper, which the user started and which clears whatever is left
//! at the end, and the agent, which is everything else. See `rdzv_agent`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::{Args, FromArgMatches};
use jiff::tz::TimeZone;
use rdzv_agent::{AgentError, AgentEvent, Outcome};
use rdzv_core::env;
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};

use super::completions;
use crate::args::parse::{command, usage};
use crate::args::program::{Launcher, link_directory};
use crate::args::{LaunchArgs, Parsed, RunArgs, parse};
use crate::exit::{Exit, Raised, Refusal};
use crate::observe::events::Events;
use crate::observe::{console, log};
use crate::resolve::{Called, Environment, EventHandler, Host, Launch, Note, resolve};
use crate::terminal::{complain, finish_lines, show, start_lines};
use crate::{host, report};

/// How long an agent that has lost its keeper tries to say so.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Starts this program again as the agent, and ends as it does.
pub(crate) fn keep(called: &OsStr) -> ExitCode {
    if let Ok(level) = log::level(std::env::var(env::LOGLEVEL).ok().as_deref()) {
        log::install(level);
    }
    // The file may have been replaced since; the kernel still has it.
    let program = std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
    let mut agent = Command::new(program);
    agent.arg0(called).args(std::env::args_os().skip(1));
    match rdzv_agent::keep(agent) {
        Ok(status) => rdzv_agent::end_like(status),
        Err(error) => {
            complain(&format!("rdzv: {error}"));
            Exit::Failure.into()
        }
    }
}

/// Reads the line, runs the launch and reports.
pub(crate) fn agent(launcher: Launcher, called: &OsStr, words: &[OsString]) -> ExitCode {
    start_lines();
    let environment = Environment(std::env::vars_os().collect());
    let path = environment.0.get(OsStr::new("PATH"));
    let called = Called {
        beside: link_directory(called, path.map(OsString::as_os_str)),
        local_rank_argument: false,
    };
    let result = match launcher {
        Launcher::LaunchCompat => launch::<LaunchArgs>(launcher, called, words, &environment),
        _ => launch::<RunArgs>(launcher, called, words, &environment),
    };
    let code = result.unwrap_or_else(|refusal| refuse(&refusal, launcher, &environment));
    finish_lines(None);
    code
}

fn launch<T: Flags>(
    launcher: Launcher,
    called: Called,
    words: &[OsString],
    environment: &Environment,
) -> Result<ExitCode, Refusal> {
    let level_text = environment.text(env::LOGLEVEL);
    let level = log::level(level_text.as_deref())?;
    log::install(level);
    if launcher == Launcher::LaunchCompat {
        complain(DEPRECATED);
    }
    let arguments: T = match parse(launcher.program(), words, &environment.0)? {
        Parsed::Run(arguments) => arguments,
        Parsed::Help(text) => return Ok(show(&text)),
        Parsed::Completion(shell) => {
            let torchrun = command::<RunArgs>("torchrun");
            return Ok(completions::print(torchrun, "torchrun", &shell));
        }
    };
    let called = Called {
        local_rank_argument: arguments.local_rank_argument()?,
        ..called
    };
    let Launch {
        plan,
        events,
        notes,
    } = resolve(arguments.as_ref(), &called, environment, &Host)?;
    for note in notes {
        match note {
            Note::Warning(text) => warn!("{text}"),
            Note::Info(text) => info!("{text}"),
        }
    }
    let name = plan.entrypoint.name.clone();
    let role = plan.role.clone();
    // The events' own logger is at INFO unless the user set a level.
    let shown = level_text.is_none() || level >= LevelFilter::INFO;
    let mut json =
        (events == EventHandler::Console && shown).then(|| Events::new(&plan, &host::full_name()));
    let mut observer = |event: &AgentEvent| {
        console::log(&role, event);
        if let Some(line) = json.as_mut().and_then(|json| json.line(event)) {
            complain(&line);
        }
    };
    let outcome = rdzv_agent::run(plan, &mut observer);
    Ok(conclude(&name, &outcome, environment))
}

/// Tells how the run ended.
fn conclude(name: &str, outcome: &Outcome, environment: &Environment) -> ExitCode {
    if let Some(path) = error_file(environment)
        && let Err(error) = rdzv_agent::write_launcher_error_file(&path, outcome)
    {
        not_written(&path, &error);
    }
    match outcome {
        Outcome::Succeeded => Exit::Success.into(),
        Outcome::Failed {
            failures,
            root_cause,
        } => {
            let zone = TimeZone::system();
            let host = host::full_name();
            complain(&report::render(name, failures, *root_cause, &host, &zone));
            Exit::Failure.into()
        }
        Outcome::Signalled {
            signal,
            workers_started: false,
        } => {
            finish_lines(None);
            rdzv_agent::end_like(ExitStatus::from_raw(*signal))
        }
        Outcome::Signalled { signal, .. } => {
            complain(&format!(
                "torch.distributed.elastic.multiprocessing.api.SignalException: Process {} got \
                 signal: {signal}",
                rdzv_agent::launcher_pid()
            ));
            Exit::Failure.into()
        }
        Outcome::Error(error) => {
            complain(&format!("{}: {error}", error.class()));
            if matches!(error, AgentError::KeeperLost) {
                // Whoever killed the keeper wants all of this to end, reader or not.
                finish_lines(Some(LAST_WORDS));
                std::process::exit(Exit::Failure.code().into());
            }
            Exit::Failure.into()
        }
    }
}

fn refuse(refusal: &Refusal, launcher: Launcher, environment: &Environment) -> ExitCode {
    let program = launcher.program();
    match refusal {
        Refusal::Raised(raised) => {
            let message = raised.to_string();
            if let Some(path) = error_file(environment)
                && let Err(error) = rdzv_agent::write_refusal_to_error_file(&path, &message)
            {
                not_written(&path, &error);
            }
            complain(&message);
            Exit::Failure.into()
        }
        Refusal::Usage(text) => {
            complain(&format!("{}\n{program}: error: {text}", usage(program)));
            Exit::Usage.into()
        }
        Refusal::Unsupported(text) => {
            complain(&format!("{program}: {text}"));
            Exit::Usage.into()
        }
    }
}

/// Where whoever started the launcher wants its error file.
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

/// The flags of a launcher.
trait Flags: Args + FromArgMatches + AsRef<RunArgs> {
    /// Whether scripts get `--local-rank`.
    fn local_rank_argument(&self) -> Result<bool, Raised>;
}

impl Flags for RunArgs {
    fn local_rank_argument(&self) -> Result<bool, Raised> {
        Ok(false)
    }
}

impl Flags for LaunchArgs {
    fn local_rank_argument(&self) -> Result<bool, Raised> {
        if self.run.no_python && !self.use_env {
            return Err(Raised::value_error(
                "When using the '--no-python' flag, you must also set the '--use-env' flag.",
            ));
        }
        Ok(!self.use_env)
    }
}

const DEPRECATED: &str = "\
FutureWarning: this is the older launcher, kept for scripts that were written for
`python -m torch.distributed.launch`. Use `torchrun` or `rdzv run` instead; scripts then read
LOCAL_RANK from the environment and get no --local-rank argument. --use-env does that here.";
