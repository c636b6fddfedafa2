//! Preview of the workers of a launch.

use std::ffi::OsString;
use std::time::Duration;

use rdzv_agent_proto::group::{Master, Round, WorkerRanks, environment};
use rdzv_core::rank::{Assignment, GroupRank};

use crate::{AgentConfig, AgentError};

/// Arguments and variables with which the agent would start a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPreview {
    /// Ranks of the worker.
    pub ranks: WorkerRanks,
    /// Arguments after the replacement of macros.
    pub arguments: Vec<OsString>,
    /// Variables that the agent adds to the environment of the configuration.
    /// `TORCHELASTIC_ERROR_FILE` is missing, because its directory exists only once workers start.
    /// So are the variables with the paths of sockets and pipes.
    pub variables: Vec<(&'static str, String)>,
}

/// Returns the workers of the first attempt here, without starting them.
/// The result holds for the rank `group_rank` in a round of `nodes` equal nodes whose workers
/// connect to `master`.
///
/// # Errors
///
/// Returns an error if `--virtual-local-rank` finds fewer devices than workers.
pub fn preview(
    config: &AgentConfig,
    nodes: u32,
    group_rank: GroupRank,
    master: Master,
) -> Result<Vec<WorkerPreview>, AgentError> {
    let size = config.identity.local_world_size;
    let (world, first) = (
        nodes.saturating_mul(size),
        group_rank.0.saturating_mul(size),
    );
    let round = Round {
        number: 0,
        group_rank,
        group_world_size: nodes,
        replaced: Vec::new(),
        master,
        losses_known_within: Duration::ZERO,
        answers_barrier: false,
    };
    let spec = config.group_spec();
    WorkerRanks::of_node(Assignment::from((first, world, first, world)), size)
        .into_iter()
        .map(|ranks| {
            let variables = environment::variables(&spec, &round, &ranks, 0);
            Ok(WorkerPreview {
                arguments: environment::arguments(&config.entrypoint.arguments, ranks.local_rank),
                variables: variables.map_err(AgentError::Plan)?,
                ranks,
            })
        })
        .collect()
}
