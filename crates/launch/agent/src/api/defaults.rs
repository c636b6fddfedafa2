//! The default values that torchelastic has had, and those of the command line.

use std::time::Duration;

/// The role of workers that were given none, with an agent and on the command line.
pub const DEFAULT_ROLE: &str = "default";

/// The role of workers that were given none in a [`LaunchConfig`](super::LaunchConfig).
pub const LAUNCH_ROLE: &str = "default_role";

/// The values that differ between torchelastic's generations and doors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// How often a group may be restarted after a failure.
    pub max_restarts: u32,
    /// How often a [`SimpleElasticAgent`](super::SimpleElasticAgent) asks its supervisor.
    /// [`LocalElasticAgent`](super::LocalElasticAgent) is told by the kernel and never asks.
    pub monitor_interval: Duration,
}

impl Defaults {
    /// Of the library today: 3 restarts, 0.1 s. What a [`WorkerSpec`](super::WorkerSpec) begins with.
    pub const LIBRARY: Self = Self {
        max_restarts: 3,
        monitor_interval: Duration::from_millis(100),
    };

    /// Of the first torchelastic: 100 restarts, 5 s.
    pub const FIRST_TORCHELASTIC: Self = Self {
        max_restarts: 100,
        monitor_interval: Duration::from_secs(5),
    };

    /// Of the command line (`torchrun`, `rdzv run`): no restarts, 0.1 s.
    pub const COMMAND_LINE: Self = Self {
        max_restarts: 0,
        monitor_interval: Duration::from_millis(100),
    };
}
