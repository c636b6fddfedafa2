//! Settings of the watches for workers that hang.

use std::path::PathBuf;
use std::time::Duration;

use rdzv_agent_proto::hang::heartbeat::HeartbeatLimits;

/// Detection of workers that make no progress, and the agent's action.
/// By default everything is off and costs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HangPlan {
    /// Named pipe of torchelastic's watchdog.
    /// The agent creates it when the run begins and removes it at the end. The environment in
    /// [`AgentConfig`](crate::AgentConfig) must contain its path as `TORCHELASTIC_TIMER_FILE`.
    pub watchdog: Option<PathBuf>,
    /// Heartbeats that workers send.
    pub heartbeat: Option<HeartbeatPlan>,
    /// Maximum time in which no worker makes progress; `None` = no check.
    pub progress: Option<Duration>,
    /// Time for which a reported rank has been slow; `None` = no check.
    /// Needs [`HangPlan::heartbeat`], because it compares the heartbeats of the phase `step`. If
    /// the script sends no such heartbeats, the check guesses from the processor use.
    pub stragglers: Option<Duration>,
    /// Action after a missed heartbeat, or if the group makes no progress.
    /// An expired timer of the watchdog stops its worker in any case, because the worker requested
    /// that; a timer with signal 0 or less stops none.
    pub action: HangAction,
    /// Program `py-spy`, for the Python stacks of workers that hang.
    /// `None` leaves these stacks out of the report. Workers that spin then count as computing.
    pub stack_tool: Option<PathBuf>,
}

/// Heartbeats that workers send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatPlan {
    /// Directory for the workers' pipes, removed at the end of the run.
    pub directory: PathBuf,
    /// Limits on the silence of workers.
    pub limits: HeartbeatLimits,
}

/// Action that follows a hang.
/// A node whose workers may all be waiting for another node only reports the hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HangAction {
    /// Report the hang and the location of each worker.
    #[default]
    Report,
    /// Report the hang and count it as a failure.
    /// The group restarts up to the limit of `--max-restarts`.
    Restart,
    /// Report the hang and end the run, even if restarts are left.
    Fail,
}

impl HangAction {
    /// Returns the name of the action, as `--hang-action` accepts it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Restart => "restart",
            Self::Fail => "fail",
        }
    }
}
