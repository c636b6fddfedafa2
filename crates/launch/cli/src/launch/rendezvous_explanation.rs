//! The section of an explanation about rendezvous.
//!
//! It shows the endpoint, the coordinator, and the store of the workers.

use rdzv_agent::AgentConfig;
use rdzv_agent::config::{MasterPort, RendezvousPlan};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env;
use rdzv_rendezvous::RendezvousParameters;
use rdzv_rendezvous::dynamic::C10dRendezvous;

use super::context::Machine;
use super::rendezvous_choice::{C10D_PORT, RendezvousReasons};
use crate::explanation::{Draft, Provenance};

pub(super) fn explain(
    draft: &mut Draft,
    plan: &AgentConfig,
    reasons: &RendezvousReasons,
    machine: &dyn Machine,
) {
    draft.section("Rendezvous");
    let backend = draft.given("rdzv_backend");
    let backend = backend.unless_decided(reasons.backend);
    draft.line("backend", plan.rendezvous.plan.backend(), backend);
    let endpoint = draft.given("rdzv_endpoint");
    let endpoint = endpoint.unless_decided(reasons.endpoint);
    let shown = match &plan.rendezvous.plan {
        RendezvousPlan::Local => "none needed".to_owned(),
        RendezvousPlan::Static { endpoint, .. } => endpoint.to_string(),
        RendezvousPlan::Dynamic { parameters } if parameters.endpoint.is_empty() => {
            "the backend's default".to_owned()
        }
        RendezvousPlan::Dynamic { parameters } => parameters.endpoint.clone(),
    };
    draft.line("endpoint", shown, endpoint);
    let id = draft.given("rdzv_id").unless_decided(reasons.run_id);
    draft.line("run id", plan.identity.run_id.as_str(), id);
    draft.mention(&["standalone", "node_rank"]);
    settings(draft, plan);
    let (coordinator, reason) = coordinator(plan, machine);
    draft.line("coordinator", coordinator, Provenance::decided(reason));
    master(draft, plan, reasons);
}

fn settings(draft: &mut Draft, plan: &AgentConfig) {
    match &plan.rendezvous.plan {
        RendezvousPlan::Local => {}
        RendezvousPlan::Static {
            node_rank, timeout, ..
        } => {
            draft.setting("this node's rank", "node_rank", node_rank.to_string(), "");
            let timeout = format!("timeout={} s", timeout.as_secs());
            draft.setting("settings", "rdzv_conf", timeout, "");
        }
        RendezvousPlan::Dynamic { parameters } => {
            let why = Provenance::decided("assigned by the rendezvous, for each round");
            draft.line("this node's rank", "not known yet", why);
            if !parameters.config.is_empty() {
                let options = parameters.config.pairs().join(", ");
                draft.setting("settings", "rdzv_conf", options, "");
            }
        }
    }
}

/// Returns the process that runs the coordinator, and the reason.
fn coordinator(plan: &AgentConfig, machine: &dyn Machine) -> (String, String) {
    let here = "this node's agent".to_owned();
    let parameters = match &plan.rendezvous.plan {
        RendezvousPlan::Local => return (here, "there is no other node".to_owned()),
        RendezvousPlan::Static { node_rank, .. } if node_rank.0 == 0 => {
            return (here, "it has --node-rank 0".to_owned());
        }
        RendezvousPlan::Static { .. } => {
            let why = "static rendezvous is hosted by the node with rank 0";
            return ("the agent with --node-rank 0".to_owned(), why.to_owned());
        }
        RendezvousPlan::Dynamic { parameters } => parameters,
    };
    match parameters.backend.as_str() {
        "c10d" if parameters.store_type() == "file" => {
            ("none".to_owned(), "the rendezvous is a file".to_owned())
        }
        "c10d" => match &endpoints(parameters)[..] {
            [endpoint] => at_one_endpoint(endpoint, parameters, machine),
            endpoints => at_voters(endpoints, machine),
        },
        backend => (
            format!("the {backend} server at the endpoint"),
            "this backend is a separate service".to_owned(),
        ),
    }
}

fn at_one_endpoint(
    endpoint: &Endpoint,
    parameters: &RendezvousParameters,
    machine: &dyn Machine,
) -> (String, String) {
    let here = "this node's agent";
    match parameters.config.get_as_bool("is_host") {
        Ok(Some(true)) => (here.to_owned(), "--rdzv-conf is_host is true".to_owned()),
        Ok(Some(false)) => (
            format!("the agent or store at {endpoint}"),
            "--rdzv-conf is_host is false".to_owned(),
        ),
        _ if machine.is_called(&endpoint.host) => (
            format!("{here}, unless a store is already at {endpoint}"),
            format!("{} is this machine", endpoint.host),
        ),
        _ => (
            format!("the agent or store at {endpoint}"),
            format!("{} is not this machine", endpoint.host),
        ),
    }
}

fn at_voters(endpoints: &[Endpoint], machine: &dyn Machine) -> (String, String) {
    let listed: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
    let own = endpoints
        .iter()
        .find(|endpoint| machine.is_called(&endpoint.host));
    let why = match own {
        Some(own) => format!("{} is this machine, whose agent is a voter", own.host),
        None => "none of these hosts is this machine".to_owned(),
    };
    let elected = format!("the elected agent among those at {}", listed.join(", "));
    (elected, why)
}

/// Returns the endpoints at which the coordinator may be.
fn endpoints(parameters: &RendezvousParameters) -> Vec<Endpoint> {
    C10dRendezvous::endpoints(parameters).unwrap_or_else(|_| {
        vec![Endpoint {
            host: parameters.endpoint.clone(),
            port: C10D_PORT,
        }]
    })
}

/// Adds the address and port of the workers' store.
fn master(draft: &mut Draft, plan: &AgentConfig, reasons: &RendezvousReasons) {
    let (address, port) = (draft.given("master_addr"), draft.given("master_port"));
    let local = draft.given("local_addr");
    let decided = |why: &str| Provenance::decided(why);
    let (host, address) = match &plan.rendezvous.plan {
        RendezvousPlan::Static { endpoint, .. } => {
            let why = "static rendezvous: its endpoint is also the workers' endpoint";
            // A reason for the endpoint means that it comes from these two flags.
            let from = |given: Provenance| match reasons.endpoint {
                "" => decided(why),
                _ => given.because(why),
            };
            draft.line(env::MASTER_ADDR, &*endpoint.host, from(address));
            draft.line(env::MASTER_PORT, endpoint.port.to_string(), from(port));
            return;
        }
        RendezvousPlan::Local => match &plan.rendezvous.local_addr {
            Some(address) => (address.clone(), local),
            None => ("127.0.0.1".to_owned(), decided("there is no other node")),
        },
        RendezvousPlan::Dynamic { .. } => match &plan.rendezvous.local_addr {
            Some(own) => (
                format!("the address of the node with rank 0 ({own} if this node has rank 0)"),
                local,
            ),
            None => (
                "the address of the node with rank 0".to_owned(),
                decided("read from the store of the round"),
            ),
        },
    };
    draft.line(env::MASTER_ADDR, host, address);
    let port = match &plan.rendezvous.master_port {
        MasterPort::Fixed(port) => port.to_string(),
        _ => "a free port".to_owned(),
    };
    let reason = if plan.rendezvous.share_store {
        "an agent hosts the workers' store there".to_owned()
    } else {
        let variable = env::TORCH_DISABLE_SHARE_RDZV_TCP_STORE;
        format!("the worker with rank 0 hosts the store: {variable}=1")
    };
    draft.line(env::MASTER_PORT, port, decided(&reason));
}
