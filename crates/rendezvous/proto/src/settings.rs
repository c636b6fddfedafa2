//! How many nodes, and how long to wait for what.

use std::time::Duration;

use crate::silence;

/// The user's choice of a [fence](crate::fence).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FencePolicy {
    /// No choice, as from agents of earlier versions: no fence.
    #[default]
    Unsaid,
    /// `off`: no fence.
    Off,
    /// `auto`: a fence while the coordinator has three voters or more.
    Auto,
}

impl FencePolicy {
    /// The value of the option; `None` if the agent sends none.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Unsaid => None,
            Self::Off => Some("off"),
            Self::Auto => Some("auto"),
        }
    }
}

/// The settings of a run's rendezvous; assumed to be the same for all its agents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Fewest nodes of a round; at least 1.
    pub min_nodes: u32,
    /// Most nodes of a round; at least `min_nodes`.
    pub max_nodes: u32,
    /// How long an agent tries to get into a round (600 s).
    pub join_timeout: Duration,
    /// How long a round waits for more nodes once it has the fewest (30 s).
    pub last_call_timeout: Duration,
    /// How long closing is tried (30 s).
    pub close_timeout: Duration,
    /// How long one heartbeat is tried (5 s).
    pub heartbeat_timeout: Duration,
    /// Time between heartbeats (5 s).
    pub keep_alive_interval: Duration,
    /// After how many missed heartbeats a node counts as lost (3).
    pub keep_alive_max_attempt: u32,
    /// Most that is slept after a lost write (0: no sleep).
    pub cas_backoff_max: Duration,
    /// A machine may be silent for so long, before its connections are ended (3 s).
    pub node_timeout: Duration,
    /// The choice of a fence.
    ///
    /// With one, an agent suspends its workers after [`Self::node_timeout`] without a message of a
    /// coordinator that has a majority.
    pub fence: FencePolicy,
}

/// One node; those of a run before its first agent has joined.
impl Default for Settings {
    fn default() -> Self {
        Self::new(1, 1)
    }
}

impl Settings {
    /// torchelastic's defaults for so many nodes.
    pub fn new(min_nodes: u32, max_nodes: u32) -> Self {
        Self {
            min_nodes,
            max_nodes,
            join_timeout: Duration::from_secs(600),
            last_call_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_max_attempt: 3,
            cas_backoff_max: Duration::ZERO,
            node_timeout: silence::NODE_TIMEOUT,
            fence: FencePolicy::Unsaid,
        }
    }

    /// Without a heartbeat for so long, a node counts as lost.
    pub fn lost_after(&self) -> Duration {
        self.keep_alive_interval * self.keep_alive_max_attempt
    }
}
