//! A job as it is started: where its agents meet, how many there are, what their workers do.

/// Where the agents meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// At `rdzv store`, on a machine of its own.
    Store,
    /// The same, behind an address of its own at the switch.
    Service,
    /// At `rdzv store` and the agents of the first nodes, which are so many voters together.
    StoreAmong(usize),
    /// At the agent of the first node, which is the only voter.
    First,
    /// The same, and others become voters by themselves.
    Open,
    /// At the agents of so many nodes from the first on, which are voters.
    Voters(usize),
}

/// The part that the workers play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workers {
    /// Train.
    Ddp,
    /// Count.
    Plain,
}

/// A job as it is started.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    /// `--nnodes`.
    pub(super) nnodes: &'static str,
    pub(super) place: Place,
    pub(super) workers: Workers,
    /// The least milliseconds of a step.
    pub(super) pace: u32,
    /// Restarts of agents and of the store.
    pub(super) agent_restarts: usize,
    pub(super) max_restarts: usize,
    /// `--rdzv-conf`.
    pub(super) conf: String,
    /// After this step the job ends by itself.
    pub(super) last_step: Option<u64>,
}

impl Plan {
    /// Four nodes that all take part, with workers that train at 20 ms a step.
    pub(super) fn new(place: Place) -> Self {
        Self {
            nodes: 4,
            nnodes: "4",
            place,
            workers: Workers::Ddp,
            pace: 20,
            agent_restarts: 1_000,
            max_restarts: 0,
            conf: String::new(),
            last_step: None,
        }
    }

    /// The same with workers that count, each alone, and one node more than are needed. A round forms a second after enough
    /// have come.
    pub(super) fn counting(place: Place) -> Self {
        Self {
            nnodes: "3:4",
            workers: Workers::Plain,
            conf: "last_call_timeout=1".to_owned(),
            ..Self::new(place)
        }
    }
}
