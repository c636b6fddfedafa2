//! Settings of a rendezvous: numbers of nodes, and timeouts.

use std::time::Duration;

use crate::silence;

/// The user's choice of a [fence](crate::fence).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FencePolicy {
    /// No choice: no fence.
    #[default]
    Unsaid,
    /// `off`: no fence.
    Off,
    /// `auto`: a fence while the coordinator has three voters or more.
    Auto,
}

impl FencePolicy {
    /// Returns the value of the option; `None` if the agent sends none.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Unsaid => None,
            Self::Off => Some("off"),
            Self::Auto => Some("auto"),
        }
    }
}

/// Settings of an agent for the rendezvous of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Minimum number of nodes of a round, at least 1.
    pub min_nodes: u32,
    /// Maximum number of nodes of a round, at least `min_nodes`.
    pub max_nodes: u32,
    /// Time for which an agent tries to get into a round (600 s).
    pub join_timeout: Duration,
    /// Time for which a round with `min_nodes` nodes waits for more (30 s).
    pub last_call_timeout: Duration,
    /// Time in which rank 0 must send the endpoint of the workers' store (60 s).
    ///
    /// A native agent sends it immediately. An agent of torchrun needs a second to notice that the
    /// round is complete, and may have to start a server.
    pub master_timeout: Duration,
    /// Time to close the run, or to leave a shared state (30 s).
    pub close_timeout: Duration,
    /// Maximum time between heartbeats (5 s).
    pub keep_alive_interval: Duration,
    /// Number of missed heartbeats after which a node is lost (3).
    pub keep_alive_max_attempt: u32,
    /// Maximum pause after a write that lost the race (0: automatic pauses).
    pub cas_backoff_max: Duration,
    /// Time for which a machine may be silent before its agent is lost (3 s).
    pub node_timeout: Duration,
    /// Choice between a fence and none.
    ///
    /// With a fence, an agent suspends its workers at the end of its [lease](crate::fence::lease),
    /// which is slightly longer than [`Self::node_timeout`].
    pub fence: FencePolicy,
    /// `true` if each round sorts its nodes; otherwise nodes keep their ranks.
    pub sorts_ranks: bool,
}

/// Settings for one node. A run has them before its first agent has joined.
impl Default for Settings {
    fn default() -> Self {
        Self::new(1, 1)
    }
}

impl Settings {
    /// Creates the default settings for these numbers of nodes.
    ///
    /// Settings that torchelastic has too have its default values.
    pub fn new(min_nodes: u32, max_nodes: u32) -> Self {
        Self {
            min_nodes,
            max_nodes,
            join_timeout: Duration::from_secs(600),
            last_call_timeout: Duration::from_secs(30),
            master_timeout: Duration::from_secs(60),
            close_timeout: Duration::from_secs(30),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_max_attempt: 3,
            cas_backoff_max: Duration::ZERO,
            node_timeout: silence::NODE_TIMEOUT,
            fence: FencePolicy::Unsaid,
            sorts_ranks: false,
        }
    }

    /// Returns the time without a heartbeat after which a node is lost.
    pub fn lost_after(&self) -> Duration {
        self.keep_alive_interval * self.keep_alive_max_attempt
    }
}
