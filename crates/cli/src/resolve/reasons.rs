//! Why a launch is what it is, where no single flag says so. `--explain` tells it.

use std::ffi::OsString;

use rdzv_agent_proto::topology::Binding;

/// The reasons behind a plan. An empty text: the flag says it all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reasons {
    /// Fewest and most nodes.
    pub(crate) nodes: (u32, u32),
    /// What was counted to get the number of workers.
    pub(crate) workers: String,
    /// Why this rendezvous, endpoint and run id.
    pub(crate) meeting: MeetingReasons,
    /// The interpreter of the workers, if they have one, and why that one.
    pub(crate) interpreter: Option<(OsString, String)>,
    /// What each worker is bound to, by local rank.
    pub(crate) bindings: Vec<Binding>,
}

/// The reasons behind a rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct MeetingReasons {
    /// For the backend, if it is not the one that the flag names.
    pub(crate) backend: String,
    /// For the endpoint, if it is not the one that the flag names.
    pub(crate) endpoint: String,
    /// For a run id that nobody gave.
    pub(crate) run_id: String,
}
