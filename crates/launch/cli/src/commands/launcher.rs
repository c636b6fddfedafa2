//! `rdzv run`, `torchrun` and `rdzv launch-compat`.
//!
//! Three processes supervise a launch. The user starts the keeper, which starts the guard. The
//! guard starts the agent, may restart a killed agent, and kills the remaining processes at the
//! end. The keeper reports an agent that was killed and not restarted. The agent runs the launch.
//! See `rdzv_agent`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rdzv_agent::AgentEvent;
use rdzv_agent::launcher::{LiveView, OutputRelay};
use rdzv_core::env;
use tracing::level_filters::LevelFilter;
use tracing::{info, warn};

use super::completions;
use super::conclude::{Ended, Report, conclude, conclude_lost_agent, refuse};
use crate::args::{
    self, Launcher, Parsed, Program, command, link_directory, own_directory, parse,
    unknown_variables,
};
use crate::exit::{Exit, Refusal};
use crate::explanation::Given;
use crate::face::Face;
use crate::launch::{Called, Environment, Hook, Launch, Note, ThisHost, explain, resolve};
use crate::observe::story::Story;
use crate::observe::{event_sinks, log};
use crate::terminal::{Form, complain, finish_lines, name_node, say, show, start_lines};
use crate::trust;

/// Starts this program a second time as the agent, and exits as it does.
pub(crate) fn keep(called: &OsStr) -> ExitCode {
    if let Ok(level) = log::level(std::env::var(env::LOGLEVEL).ok().as_deref()) {
        log::install(level, face_of(called));
    }
    let program = match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        // The file has been replaced; the kernel still has the old one.
        Ok(_) => PathBuf::from("/proc/self/exe"),
        // Without /proc, `Command` looks up the program's name in PATH.
        Err(_) => PathBuf::from(called),
    };
    let mut agent = Command::new(program);
    agent.arg0(called).args(std::env::args_os().skip(1));
    match rdzv_agent::launcher::keep(agent) {
        Ok(end) => {
            // This call may read the token, so the copy is removed after it.
            conclude_lost_agent(called, &end);
            trust::remove_copy();
            rdzv_agent::launcher::end_like(end.status)
        }
        Err(error) => {
            trust::remove_copy();
            complain(&format!("rdzv: {error}"));
            Exit::Failure.into()
        }
    }
}

/// Returns the style of the keeper's messages: that of its agent.
fn face_of(called: &OsStr) -> Face {
    let words = std::env::args_os().skip(1).collect();
    match Program::of(called, words) {
        Program::Launch(launcher, words) => {
            args::face(launcher, &words, &std::env::vars_os().collect())
        }
        Program::Own(_) => Face::Rdzv,
    }
}

/// Parses the line, runs the launch and reports the end.
pub(crate) fn agent(launcher: Launcher, called: &OsStr, words: &[OsString]) -> ExitCode {
    // This call comes before any second thread or process exists.
    let _ = rdzv_agent::launcher::kept();
    let relay = OutputRelay::start();
    start_lines();
    let environment = Environment(std::env::vars_os().collect());
    let path = environment.0.get(OsStr::new("PATH"));
    let called = Called {
        beside: link_directory(called, path.map(OsString::as_os_str)),
        own: own_directory(),
        local_rank_argument: false,
        is_strict: launcher == Launcher::Run,
    };
    let face = args::face(launcher, words, &environment.0);
    let result = launch(launcher, face, called, words, &environment, relay);
    let code = result.unwrap_or_else(|refusal| refuse(&refusal, launcher, face, &environment));
    finish_lines(None);
    code
}

fn launch(
    launcher: Launcher,
    face: Face,
    called: Called,
    words: &[OsString],
    environment: &Environment,
    relay: Option<OutputRelay>,
) -> Result<ExitCode, Refusal> {
    let level_text = environment.text(env::LOGLEVEL);
    let level = log::level(level_text.as_deref())?;
    log::install(level, face);
    if launcher == Launcher::LaunchCompat {
        complain(DEPRECATED);
    }
    let (arguments, settings) = match parse(launcher, words, &environment.0)? {
        Parsed::Run(arguments, settings) => (arguments, settings),
        Parsed::Help(text) => return Ok(show(&text)),
        Parsed::Completion(shell) => {
            let torchrun = completions::with_values(command(Launcher::Torchrun));
            return Ok(completions::print(torchrun, "torchrun", &shell));
        }
    };
    for sentence in unknown_variables(&command(launcher), &environment.0) {
        warn!("{sentence}");
    }
    let called = Called {
        local_rank_argument: arguments.local_rank_argument()?,
        ..called
    };
    let arguments = arguments.run;
    let step_node = arguments.scheduled.step_node.as_ref();
    if let (Face::Rdzv, Some(step_node)) = (face, step_node) {
        name_node(&step_node.node);
    }
    let nodes = settings.iter().find(|setting| setting.id == "nnodes");
    if let Some(Given::ByVariable(variable)) = nodes.map(|nodes| &nodes.given) {
        log::nodes_are_from(variable);
    }
    let is_one_of_many = step_node.is_some_and(|step_node| step_node.task > 0);
    let report = Report::open(&arguments, face, &ThisHost)?;
    let launch = || {
        let launch = resolve(&arguments, &called, environment, &ThisHost);
        let mut launch = launch.map_err(|refusal| refusal.with_origin(&settings))?;
        for note in &launch.notes {
            match note {
                // The first node prints the same warning to the same output.
                Note::Warning(text) | Note::Either { plain: text, .. }
                    if face == Face::Rdzv && is_one_of_many =>
                {
                    info!("{text}");
                }
                Note::Warning(text) => warn!("{text}"),
                Note::Info(text) => info!("{text}"),
                Note::Either { torchrun, .. } if face == Face::Torchrun => warn!("{torchrun}"),
                Note::Either { plain, .. } => warn!("{plain}"),
            }
        }
        if let Some(format) = &arguments.explain {
            let explanation = explain(settings.clone(), &launch, environment, &ThisHost)?;
            return Ok(show(&match format.as_str() {
                "json" => explanation.json(),
                _ => explanation.table(),
            }));
        }
        // The logger of the events has level INFO unless the user set a level.
        let events_shown = level_text.is_none() || level >= LevelFilter::INFO;
        let (terminal, is_ours) = (&arguments.terminal, face == Face::Rdzv);
        launch.plan.logs.whole_lines = is_ours;
        let view = terminal.view(is_ours, &mut launch.plan, environment, relay)?;
        let on_restart = report.hooks.on_restart.clone();
        let ended = run(launch, face, view, events_shown, on_restart)?;
        Ok(conclude(&ended, &report, environment))
    };
    launch().inspect_err(|refusal| report.refused(refusal))
}

fn run(
    launch: Launch,
    face: Face,
    view: Option<LiveView>,
    events_shown: bool,
    on_restart: Option<Hook>,
) -> Result<Ended, Refusal> {
    let active = launch.active();
    let Launch {
        mut plan,
        observers,
        interpreter,
        ..
    } = launch;
    let interpreter =
        interpreter.map(|(path, origin)| (path.to_string_lossy().into_owned(), origin));
    let (title, logs) = (plan.entrypoint.name.clone(), plan.logs.clone());
    let (signals, mut signalled) = (plan.stop.signals.clone(), false);
    plan.placement.open_files = rdzv_agent::launcher::host::raise_open_files_limit();
    let mut sinks = event_sinks::open(&mut plan, &observers, view.as_ref(), events_shown)?;
    if let Some(hook) = on_restart {
        sinks.on_restart(hook, title.clone());
    }
    let mut story = Story::new(plan.stop.shutdown_timeout);
    let outcome =
        rdzv_agent::launcher::run_in_view(plan, view.as_ref(), &mut |event: &AgentEvent| {
            let form = Form::of_stderr();
            let lines = story.record(event, form.width);
            if face == Face::Rdzv {
                say(&lines, form);
            }
            signalled |= matches!(
                event,
                AgentEvent::SignalReceived { .. } | AgentEvent::Preempted { .. }
            );
            sinks.record(event);
        });
    if let Some(view) = view {
        view.end();
    }
    Ok(Ended {
        report: sinks.finish(),
        story,
        title,
        logs,
        signals,
        signalled,
        outcome,
        active,
        interpreter,
    })
}

const DEPRECATED: &str = "\
FutureWarning: this is the older launcher, kept for scripts that were written for
`python -m torch.distributed.launch`. Use `torchrun` or `rdzv run` instead; scripts then read
LOCAL_RANK from the environment and get no --local-rank argument. --use-env does that here.";
