//! What all events of a run have in common.

use std::path::Path;

use crate::{LaunchPlan, host};

/// What the reference calls the function that runs the script with `--run-path`.
const RUN_PATH_NAME: &str = "run_script_path";

/// The run and the node that events are about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFacts {
    /// The job's name.
    pub run_id: String,
    /// The role of this node's workers.
    pub role: String,
    /// The full name of this host.
    pub host: String,
    /// Name of the rendezvous backend.
    pub backend: String,
    /// Base name of the program that workers execute, or what the plan calls it if that is no path.
    pub entry_point: String,
    /// How often the group may be restarted.
    pub max_restarts: u32,
    /// How many workers this node starts.
    pub local_world_size: u32,
}

impl RunFacts {
    /// Those of a launch on this host.
    pub fn new(plan: &LaunchPlan) -> Self {
        let name = &plan.entrypoint.name;
        let entry_point = if name == RUN_PATH_NAME {
            name.clone()
        } else {
            Path::new(&plan.entrypoint.program)
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Self {
            run_id: plan.run_id.to_string(),
            role: plan.role.clone(),
            host: host::full_name(),
            backend: plan.rendezvous_backend.clone(),
            entry_point,
            max_restarts: plan.max_restarts,
            local_world_size: plan.local_world_size,
        }
    }
}
