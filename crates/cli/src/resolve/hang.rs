//! How workers that hang are noticed, and what follows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdzv_agent::{Entrypoint, HangAction, HangPlan, HeartbeatPlan};
use rdzv_agent_proto::hang::heartbeat::HeartbeatLimits;
use rdzv_core::env;

use super::{Environment, Machine, output};
use crate::args::HangArgs;
use crate::exit::Refusal;

/// The program that reads the stacks of Python processes.
const STACK_TOOL: &str = "py-spy";

/// Decides what is watched. Tells the workers where the watchdog's pipe is.
pub(super) fn plan(
    arguments: &HangArgs,
    entrypoint: &Entrypoint,
    environment: &Environment,
    machine: &dyn Machine,
    workers: &mut BTreeMap<OsString, OsString>,
) -> Result<HangPlan, Refusal> {
    let watchdog = watchdog(environment, machine);
    if let Some(path) = &watchdog {
        workers.insert(env::TORCHELASTIC_TIMER_FILE.into(), path.into());
    }
    let heartbeat = arguments
        .heartbeat_timeout
        .as_deref()
        .filter(|text| !text.is_empty())
        .map(|text| heartbeat(text, environment, machine))
        .transpose()?;
    let progress = progress(arguments.hang_timeout)?;
    let on = watchdog.is_some() || heartbeat.is_some() || progress.is_some();
    Ok(HangPlan {
        watchdog,
        heartbeat,
        progress,
        action: action(&arguments.hang_action)?,
        stack_tool: on
            .then(|| stack_tool(entrypoint, environment, machine))
            .flatten(),
    })
}

/// The reference's switch and path.
fn watchdog(environment: &Environment, machine: &dyn Machine) -> Option<PathBuf> {
    let on = environment.text(env::TORCHELASTIC_ENABLE_FILE_TIMER)? == "1";
    on.then(|| match environment.filled(env::TORCHELASTIC_TIMER_FILE) {
        Some(path) => machine.working_directory().join(path),
        None => output::temporary_directory(environment, machine)
            .join(format!("watchdog_timer_{}", machine.random_id())),
    })
}

fn heartbeat(
    text: &str,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<HeartbeatPlan, Refusal> {
    let limits =
        HeartbeatLimits::parse(text).map_err(|problem| misused("--heartbeat-timeout", &problem))?;
    let directory = output::temporary_directory(environment, machine)
        .join(format!("rdzv_heartbeat_{}", machine.random_id()));
    Ok(HeartbeatPlan { directory, limits })
}

fn progress(seconds: f64) -> Result<Option<Duration>, Refusal> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(Duration::ZERO) => Ok(None),
        Ok(limit) => Ok(Some(limit)),
        Err(_) => {
            let problem = format!("{seconds} is no number of seconds");
            Err(misused("--hang-timeout", &problem))
        }
    }
}

fn action(text: &str) -> Result<HangAction, Refusal> {
    match text {
        "report" => Ok(HangAction::Report),
        "restart" => Ok(HangAction::Restart),
        "fail" => Ok(HangAction::Fail),
        other => {
            let problem = format!("{other:?} is none of report, restart and fail");
            Err(misused("--hang-action", &problem))
        }
    }
}

/// In `PATH`, else beside the workers' interpreter.
fn stack_tool(
    entrypoint: &Entrypoint,
    environment: &Environment,
    machine: &dyn Machine,
) -> Option<PathBuf> {
    let path = environment.text("PATH").unwrap_or_default();
    let program = Path::new(&entrypoint.program);
    let beside = program
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty());
    std::env::split_paths(&path)
        .chain(beside.map(Path::to_owned))
        .map(|directory| machine.working_directory().join(directory).join(STACK_TOOL))
        .find(|tool| machine.is_program(tool))
}

fn misused(flag: &str, problem: &str) -> Refusal {
    Refusal::Usage(format!("argument {flag}: {problem}"))
}
