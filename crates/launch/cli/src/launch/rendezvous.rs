//! The rendezvous of the agent: choice, credentials, and the workers' store.

use rdzv_agent::config::{RendezvousOptions, RendezvousPlan};
use rdzv_core::env;
use rdzv_core::ident::RunId;
use rdzv_rendezvous::{BackendRegistry, RendezvousConfig};
use rdzv_store::StorePolicy;

use super::context::Context;
use super::flags::RunArgs;
use super::rendezvous_choice::{
    RendezvousChoice, RendezvousReasons, known_voters, value_error, without_effect,
};
use crate::exit::Refusal;
use crate::trust::{NO_TOKEN, Trust};

/// Resolves the rendezvous options; later steps such as [`admit`] add more.
///
/// Also returns the run id, and the reasons for the choice.
pub(super) fn resolve(
    args: &RunArgs,
    choice: &RendezvousChoice<'_>,
    settings: &RendezvousConfig,
    is_strict: bool,
    context: &mut Context<'_>,
) -> Result<(RendezvousOptions, RunId, RendezvousReasons), Refusal> {
    let environment = context.environment;
    let backends = BackendRegistry::with_defaults();
    choice.check_options(settings, &backends, is_strict, context)?;
    let (mut plan, run_id, mut reasons) = choice.choose(settings, &backends, context)?;
    if is_strict {
        choice.check_values(&plan)?;
    }
    if let RendezvousPlan::Dynamic { parameters } = &mut plan {
        let (script, has_run_id) = (&args.training_script, args.rendezvous.rdzv_id.is_some());
        parameters.sorts_ranks = !is_strict;
        parameters.program = Some(args.command.program(script, has_run_id, context));
    }
    let agent_restarts;
    (agent_restarts, reasons.agent_restarts) = args.restart.of_agent(&plan, context);
    let step_node = args.scheduled.step_node.as_ref();
    let options = RendezvousOptions {
        plan,
        backends,
        is_needed: step_node
            .is_some_and(|step_node| choice.nodes.are_all_needed_of(step_node.names.len())),
        local_addr: args.fixed.local_addr(),
        share_store: !environment.is_one(env::TORCH_DISABLE_SHARE_RDZV_TCP_STORE),
        identical_workers: environment.is_one(env::TORCH_ELASTIC_WORKER_IDENTICAL),
        agent_restarts,
        ..RendezvousOptions::default()
    };
    Ok((options, run_id, reasons))
}

/// Adds the secret of the job to the options.
///
/// Also adds the voters that the environment names, and the limits of the store.
pub(super) fn admit(
    trust: Trust,
    choice: &RendezvousChoice<'_>,
    settings: &RendezvousConfig,
    options: &mut RendezvousOptions,
    context: &mut Context<'_>,
) -> Result<(), Refusal> {
    for warning in &trust.warnings {
        context.warn(warning);
    }
    if trust.credentials.is_empty() && choice.is_reachable(&options.plan) {
        context.warn(NO_TOKEN);
    }
    for (name, path) in trust.variables {
        context.workers.insert(name.into(), path.into());
    }
    if let RendezvousPlan::Dynamic { parameters } = &mut options.plan {
        parameters.credentials = trust.credentials.clone();
        parameters.torch_clients = trust.torch_clients;
        if let Some(contact_points) = context.environment.filled(env::RDZV_CONTACT_POINTS) {
            parameters.known_voters = known_voters(&contact_points)?;
        }
        for warning in without_effect(parameters, options.agent_restarts) {
            context.warn(warning);
        }
    }
    let limits = settings.store_limits();
    options.store_policy = StorePolicy {
        limits: limits.map_err(|error| value_error("--rdzv-conf", &error))?,
        credentials: trust.credentials,
        torch_clients: trust.torch_clients,
    };
    Ok(())
}
