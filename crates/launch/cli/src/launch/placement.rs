//! The processors and devices of each worker.

use rdzv_agent::config::PlacementOptions;
use rdzv_agent_proto::group::environment::device_of;
use rdzv_agent_proto::topology::{Binding, BindingMode};
use rdzv_core::rank::LocalRank;

use super::context::Context;
use super::flags::RunArgs;
use crate::exit::Raised;
use crate::explanation::Draft;

/// Resolves `--numa-binding` and `--virtual-local-rank`.
///
/// Also returns the processors of each worker, with the reason.
pub(super) fn resolve(
    args: &RunArgs,
    local_world_size: u32,
    context: &Context<'_>,
) -> Result<(PlacementOptions, Vec<Binding>), Raised> {
    let lists = context.environment.visible_lists();
    let mode = args.numa_binding.as_deref().and_then(BindingMode::named);
    let bindings = mode.map(|mode| context.machine.bind(mode, &lists, local_world_size));
    let bindings = bindings
        .transpose()
        .map_err(|error| Raised::new("RuntimeError", error.to_string()).about("--numa-binding"))?;
    let bindings = bindings.unwrap_or_default();
    if args.virtual_local_rank {
        // Each worker gets one device, so there must be at least as many devices as workers.
        for local_rank in 0..local_world_size {
            device_of(&lists, LocalRank(local_rank))
                .map_err(|text| Raised::value_error(text).about("--virtual-local-rank"))?;
        }
    }
    let processors = bindings.iter().map(|binding| binding.processors.clone());
    let options = PlacementOptions {
        processors: processors.collect(),
        virtual_local_rank: args.virtual_local_rank,
        ..PlacementOptions::default()
    };
    Ok((options, bindings))
}

/// Adds the processors of bound workers to an explanation.
pub(super) fn explain(draft: &mut Draft, bindings: &[Binding]) {
    draft.section("Processors");
    for (local_rank, binding) in bindings.iter().enumerate() {
        let (name, processors) = (
            format!("worker {local_rank}"),
            binding.processors.to_string(),
        );
        draft.setting(name, "numa_binding", processors, &binding.reason);
    }
}
