//! `rdzv run --explain`: all sections of an explanation.

use super::context::{Environment, Machine};
use super::resolve::Launch;
use super::{
    entrypoint, hang_detection, node_check, observers, placement, preemption,
    rendezvous_explanation, restarts, worker_count, worker_output, worker_variables,
};
use crate::exit::Refusal;
use crate::explanation::{Draft, Explanation, Setting};
use crate::{scheduler, trust};

/// Explains a launch; `settings` are all flags with their values.
///
/// Fails if a worker's command or variables cannot be determined.
pub(crate) fn explain(
    settings: Vec<Setting>,
    launch: &Launch,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<Explanation, Refusal> {
    let (plan, mut draft) = (&launch.plan, Draft::new(settings));
    scheduler::explain(&mut draft, &launch.scheduled);
    worker_count::explain(
        &mut draft,
        &launch.nodes,
        plan.identity.local_world_size,
        &launch.count,
        machine,
    );
    rendezvous_explanation::explain(&mut draft, plan, &launch.rendezvous, machine);
    node_check::explain(&mut draft, plan.rendezvous.node_check.as_ref());
    restarts::explain(
        &mut draft,
        plan,
        launch.rendezvous.agent_restarts,
        launch.scheduled.longest_shutdown_timeout,
        environment,
    );
    preemption::explain(
        &mut draft,
        plan.preemption.as_ref(),
        environment,
        launch.deadline,
    );
    worker_output::explain(&mut draft, &plan.logs, environment);
    hang_detection::explain(&mut draft, &plan.hang, environment);
    trust::explain(&mut draft);
    observers::explain(&mut draft, &launch.observers);
    let interpreter = launch.interpreter.as_ref();
    let mode = entrypoint::explain(&mut draft, &plan.entrypoint, &plan.preload, interpreter);
    let workers = worker_variables::preview_workers(launch)?;
    worker_variables::explain_commands(&mut draft, launch, &workers, &mode);
    placement::explain(&mut draft, &launch.bindings);
    worker_variables::explain_variables(&mut draft, launch, &workers, environment);
    Ok(draft.finish())
}
