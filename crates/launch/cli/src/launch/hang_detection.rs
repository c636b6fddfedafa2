//! Detection of workers that hang, and the action that follows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rdzv_agent::config::{Entrypoint, HangAction, HangPlan, HeartbeatPlan};
use rdzv_agent_proto::hang::heartbeat::HeartbeatLimits;
use rdzv_core::env;

use super::context::{Context, Environment};
use crate::exit::Refusal;
use crate::explanation::{Draft, Provenance};
use crate::number;

/// Program that reads the stacks of Python processes.
const STACK_TOOL: &str = "py-spy";

/// Flags for workers that hang.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct HangArgs {
    /// Seconds without progress that count as a hang (0 disables)
    ///
    /// rdzv observes progress from outside: processor time of a worker and its children, output,
    /// and data read. A job with several nodes hangs if no node makes progress. This requires the
    /// flag on all nodes.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = number::float)]
    hang_timeout: f64,

    /// Maximum seconds between heartbeats, such as 30 or init=600,step=30.
    ///
    /// Workers write lines to the named pipe RDZV_HEARTBEAT. The first word of a line is the phase
    /// that the worker enters. The limit of that phase applies until the next line. A number
    /// without a phase is the limit of all phases that are not named. However, `init` (before the
    /// first line) and `done` have no limit unless they are named.
    #[arg(long, value_name = "LIMITS")]
    heartbeat_timeout: Option<String>,

    /// Name ranks that are slower than the others for SECONDS (0 disables).
    ///
    /// rdzv compares the times at which ranks report their steps: the workers write `step N` to the
    /// named pipe RDZV_HEARTBEAT before the first collective of each step. If no worker does, rdzv
    /// compares processor time, and marks the result as a guess. The agent of node 0 reports ranks
    /// of all nodes with this flag.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = number::float)]
    stragglers: f64,

    /// Action when workers hang: report, restart or fail.
    ///
    /// Each action reports the locations of the node's workers. `restart` also restarts the group
    /// as after a failure, up to --max-restarts times; `fail` also ends the run. If a job with
    /// several nodes hangs (--hang-timeout), each node with a rank at another location than the
    /// other ranks stops its workers. If there is no such rank, all nodes do. If a node runs
    /// without --hang-timeout, the other nodes stop workers only if py-spy shows that one of these
    /// workers is stopped, or is not in a collective, a backward pass or `torch.cuda`.
    #[arg(long, value_name = "ACTION", default_value = "report")]
    hang_action: String,
}

impl HangArgs {
    /// Resolves the flags, and sets the variable for the watchdog's pipe.
    pub(super) fn resolve(
        &self,
        entrypoint: &Entrypoint,
        context: &mut Context<'_>,
    ) -> Result<HangPlan, Refusal> {
        let watchdog = watchdog(context);
        if let Some(path) = &watchdog {
            let workers = &mut context.workers;
            workers.insert(env::TORCHELASTIC_TIMER_FILE.into(), path.into());
        }
        let heartbeat = self.heartbeat(context)?;
        let progress = seconds("--hang-timeout", self.hang_timeout)?;
        let stragglers = seconds("--stragglers", self.stragglers)?;
        let action = match &*self.hang_action {
            "report" => HangAction::Report,
            "restart" => HangAction::Restart,
            "fail" => HangAction::Fail,
            other => {
                let problem = format!("{other:?} is not one of report, restart and fail");
                return Err(Refusal::argument("--hang-action", &problem));
            }
        };
        Ok(HangPlan {
            watchdog,
            heartbeat,
            progress,
            stragglers,
            action,
            stack_tool: stack_tool(entrypoint, context),
        })
    }

    fn heartbeat(&self, context: &Context<'_>) -> Result<Option<HeartbeatPlan>, Refusal> {
        let text = self.heartbeat_timeout.as_deref().unwrap_or_default();
        let limits = match text {
            "" if self.stragglers <= 0.0 => return Ok(None),
            "" => HeartbeatLimits::default(),
            text => HeartbeatLimits::parse(text)
                .map_err(|problem| Refusal::argument("--heartbeat-timeout", &problem))?,
        };
        let name = format!("rdzv_heartbeat_{}", context.machine.random_id());
        let directory = context.temporary_directory().join(name);
        Ok(Some(HeartbeatPlan { directory, limits }))
    }
}

/// Returns a time in seconds; `None` if it is 0.
fn seconds(flag: &str, value: f64) -> Result<Option<Duration>, Refusal> {
    match Duration::try_from_secs_f64(value) {
        Ok(limit) => Ok(Some(limit).filter(|limit| !limit.is_zero())),
        Err(_) => {
            let problem = format!("{value} is not a non-negative number of seconds");
            Err(Refusal::argument(flag, &problem))
        }
    }
}

/// Returns the pipe of the watchdog, if PyTorch's variables enable it.
fn watchdog(context: &Context<'_>) -> Option<PathBuf> {
    let environment = context.environment;
    let on = environment.is_one(env::TORCHELASTIC_ENABLE_FILE_TIMER);
    on.then(|| match environment.filled(env::TORCHELASTIC_TIMER_FILE) {
        Some(path) => context.absolute(path),
        None => {
            let name = format!("watchdog_timer_{}", context.machine.random_id());
            context.temporary_directory().join(name)
        }
    })
}

/// Finds the stack tool in `PATH`, or next to the workers' program.
fn stack_tool(entrypoint: &Entrypoint, context: &Context<'_>) -> Option<PathBuf> {
    let beside = Path::new(&entrypoint.program).parent();
    let beside = beside.filter(|directory| !directory.as_os_str().is_empty());
    let tool = context.find_program(STACK_TOOL, beside)?;
    Some(context.absolute(tool))
}

pub(super) fn explain(draft: &mut Draft, hang: &HangPlan, environment: &Environment) {
    draft.section("Workers that hang");
    let progress = hang.progress.map_or_else(
        || "not watched".to_owned(),
        |limit| format!("after {} s without progress", limit.as_secs_f64()),
    );
    draft.setting("group without progress", "hang_timeout", progress, "");
    let heartbeat = match &hang.heartbeat {
        Some(_) => "limits as specified",
        None => "not expected",
    };
    draft.setting("heartbeats", "heartbeat_timeout", heartbeat, "");
    let stragglers = hang.stragglers.map_or_else(
        || "not watched".to_owned(),
        |limit| format!("after {} s", limit.as_secs_f64()),
    );
    draft.setting("slow ranks", "stragglers", stragglers, "");
    let switch = env::TORCHELASTIC_ENABLE_FILE_TIMER;
    let (watchdog, provenance) = match &hang.watchdog {
        Some(pipe) => (
            pipe.display().to_string(),
            Provenance::variable(switch).because("its pipe"),
        ),
        None => (
            "off".to_owned(),
            Provenance::decided(format!("{switch} is not 1")),
        ),
    };
    draft.line("watchdog", watchdog, provenance);
    let variable = env::TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT;
    if let Some(limit) = environment.filled(variable) {
        let limit = format!("after {limit} s");
        draft.line(
            "blocked in the kernel",
            limit,
            Provenance::variable(variable),
        );
    }
    draft.flag("then", "hang_action");
    if hang.progress.is_some() || hang.heartbeat.is_some() || hang.watchdog.is_some() {
        let (tool, how) = match &hang.stack_tool {
            Some(tool) => (
                tool.display().to_string(),
                "found in PATH, or next to the interpreter",
            ),
            None => (
                "the kernel's information".to_owned(),
                "no py-spy in PATH or next to the interpreter",
            ),
        };
        draft.line("location of a hang", tool, Provenance::detected(how));
    }
}
