//! Default values of torchelastic and of the command line.

use std::time::Duration;

/// Default role of workers, with an agent and on the command line.
pub const DEFAULT_ROLE: &str = "default";

/// Default role of workers in a [`LaunchConfig`](super::LaunchConfig).
pub const LAUNCH_ROLE: &str = "default_role";

/// Defaults that differ between torchelastic's generations and interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// Maximum number of restarts of a group after failures.
    pub max_restarts: u32,
    /// Longest time between two polls of a [`SimpleElasticAgent`]'s workers.
    /// A [`LocalElasticAgent`](super::LocalElasticAgent) ignores it, because the kernel notifies
    /// that agent.
    ///
    /// [`SimpleElasticAgent`]: super::SimpleElasticAgent
    pub monitor_interval: Duration,
}

impl Defaults {
    /// Defaults of the current library: 3 restarts, 0.1 s.
    /// A [`WorkerSpec`](super::WorkerSpec) begins with them.
    pub const LIBRARY: Self = Self {
        max_restarts: 3,
        monitor_interval: Duration::from_millis(100),
    };

    /// Defaults of the first torchelastic: 100 restarts, 5 s.
    pub const FIRST_TORCHELASTIC: Self = Self {
        max_restarts: 100,
        monitor_interval: Duration::from_secs(5),
    };

    /// Defaults of the command line (`torchrun`, `rdzv run`): no restarts, 0.1 s.
    pub const COMMAND_LINE: Self = Self {
        max_restarts: 0,
        monitor_interval: Duration::from_millis(100),
    };
}
