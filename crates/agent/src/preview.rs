//! What workers would be given, without starting any.

use std::ffi::OsString;
use std::time::Duration;

use rdzv_agent_proto::group::{Master, Round, WorkerRanks, environment};
use rdzv_core::rank::{Assignment, GroupRank};

use crate::agent::spec;
use crate::{AgentError, LaunchPlan};

/// One worker as it would be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPreview {
    /// Its place.
    pub place: WorkerRanks,
    /// Its arguments, macros replaced.
    pub arguments: Vec<OsString>,
    /// The variables that it gets beyond the environment of the plan, except
    /// `TORCHELASTIC_ERROR_FILE`, whose directory is made when workers start.
    pub variables: Vec<(&'static str, String)>,
}

/// The workers of this node in the first attempt, if this node came first in a round of `nodes` equal
/// ones whose workers meet at `master`.
///
/// # Errors
///
/// If there are fewer devices than workers with `--virtual-local-rank`.
pub fn preview(
    plan: &LaunchPlan,
    nodes: u32,
    group_rank: GroupRank,
    master: Master,
) -> Result<Vec<WorkerPreview>, AgentError> {
    let size = plan.local_world_size;
    let (world, first) = (
        nodes.saturating_mul(size),
        group_rank.0.saturating_mul(size),
    );
    let round = Round {
        number: 0,
        group_rank,
        group_world_size: nodes,
        master,
        losses_known_within: Duration::ZERO,
    };
    let spec = spec(plan);
    WorkerRanks::of_node(Assignment::from((first, world, first, world)), size)
        .into_iter()
        .map(|place| {
            let variables = environment::variables(&spec, &round, &place, 0);
            Ok(WorkerPreview {
                arguments: environment::arguments(&plan.entrypoint.arguments, place.local_rank),
                variables: variables.map_err(AgentError::Plan)?,
                place,
            })
        })
        .collect()
}
