//! Which of the watches are on.

use std::path::PathBuf;
use std::time::Duration;

use rdzv_agent_proto::hang::heartbeat::HeartbeatLimits;

/// How the agent notices workers that do not get on, and what it does then. By default everything
/// is off and costs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HangPlan {
    /// The named pipe of torchelastic's watchdog, made when the run begins and removed at its end.
    /// Workers have to be told by `TORCHELASTIC_TIMER_FILE` in [`AgentConfig`](crate::AgentConfig)'s
    /// environment.
    pub watchdog: Option<PathBuf>,
    /// Heartbeats that workers send.
    pub heartbeat: Option<HeartbeatPlan>,
    /// How long all workers may show no progress; `None` = they are not looked at.
    pub progress: Option<Duration>,
    /// What follows a missed heartbeat or a group without progress. An expired timer of the watchdog
    /// always ends its worker, because that is what the worker asked for.
    pub action: HangAction,
    /// The program `py-spy`, for the Python stacks of workers that hang; `None` = what the kernel
    /// knows has to do.
    pub stack_tool: Option<PathBuf>,
}

/// Heartbeats that workers send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatPlan {
    /// The directory that is made for the workers' pipes, and removed at the end of the run.
    pub directory: PathBuf,
    /// How long workers may be silent.
    pub limits: HeartbeatLimits,
}

/// What follows a hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HangAction {
    /// It is reported, with where each worker is.
    #[default]
    Report,
    /// It is reported and counts as a failure: the group is restarted as often as `--max-restarts`
    /// allows.
    Restart,
    /// It is reported and ends the run, whatever restarts are left.
    Fail,
}

impl HangAction {
    /// Its name, as `--hang-action` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Restart => "restart",
            Self::Fail => "fail",
        }
    }
}
