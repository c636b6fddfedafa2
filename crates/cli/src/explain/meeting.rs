//! The lines about rendezvous: where the nodes meet, who hosts it, and where the workers meet.

use rdzv_agent::{LaunchPlan, MasterPort, RendezvousPlan};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env;

use super::draft::{Because, Draft};
use crate::args::RunArgs;
use crate::resolve::{Launch, Machine};

/// Port of a c10d endpoint that names none.
const C10D_PORT: u16 = 29400;

pub(super) fn lines(
    draft: &mut Draft,
    arguments: &RunArgs,
    launch: &Launch,
    machine: &dyn Machine,
) {
    let (plan, reasons) = (&launch.plan, &launch.reasons.meeting);
    draft.section("Rendezvous");
    let backend = draft.given("rdzv_backend");
    let backend = because(backend, &reasons.backend);
    draft.line("backend", &plan.rendezvous_backend, backend);
    let endpoint = draft.given("rdzv_endpoint");
    let shown = match &plan.rendezvous {
        RendezvousPlan::Local => "none needed".to_owned(),
        RendezvousPlan::Static { endpoint, .. } => endpoint.to_string(),
        RendezvousPlan::Dynamic { parameters } if parameters.endpoint.is_empty() => {
            "the backend's default".to_owned()
        }
        RendezvousPlan::Dynamic { parameters } => parameters.endpoint.clone(),
    };
    draft.line("endpoint", shown, because(endpoint, &reasons.endpoint));
    let id = draft.given("rdzv_id");
    draft.line("run id", plan.run_id.as_str(), because(id, &reasons.run_id));
    draft.told(&["standalone"]);
    settings(draft, plan);
    let (host, reason) = host(plan, machine);
    draft.line("who hosts it", host, Because::decided(reason));
    master(draft, arguments, plan);
}

fn because(given: Because, reason: &str) -> Because {
    if reason.is_empty() {
        given
    } else {
        Because::decided(reason)
    }
}

fn settings(draft: &mut Draft, plan: &LaunchPlan) {
    match &plan.rendezvous {
        RendezvousPlan::Local => draft.told(&["node_rank"]),
        RendezvousPlan::Static {
            node_rank, timeout, ..
        } => {
            draft.setting("this node's rank", "node_rank", node_rank.to_string(), "");
            let timeout = format!("timeout={} s", timeout.as_secs());
            draft.setting("settings", "rdzv_conf", timeout, "");
        }
        RendezvousPlan::Dynamic { parameters } => {
            let why = "decided by the rendezvous, in every round anew";
            draft.line("this node's rank", "not known yet", Because::decided(why));
            draft.told(&["node_rank"]);
            if !parameters.config.is_empty() {
                let options = parameters.config.iter();
                let options: Vec<String> = options
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                draft.setting("settings", "rdzv_conf", options.join(", "), "");
            }
        }
    }
}

/// Who runs the server that the nodes meet at, and why.
fn host(plan: &LaunchPlan, machine: &dyn Machine) -> (String, String) {
    let here = "this node's agent".to_owned();
    let parameters = match &plan.rendezvous {
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
        "c10d" if parameters.get("store_type") == Some("file") => {
            ("nobody".to_owned(), "it is a file".to_owned())
        }
        "c10d" => match (
            parameters.get_as_bool("is_host"),
            endpoint(&parameters.endpoint),
        ) {
            (Ok(Some(true)), _) => (here, "--rdzv-conf is_host says so".to_owned()),
            (Ok(Some(false)), endpoint) => (
                format!("whoever is at {endpoint}"),
                "--rdzv-conf is_host says that it is not this node".to_owned(),
            ),
            (_, endpoint) if machine.is_called(&endpoint.host) => (
                format!("{here}, unless a store is at {endpoint} already"),
                format!("{} is this machine", endpoint.host),
            ),
            (_, endpoint) => (
                format!("whoever is at {endpoint}"),
                format!("{} is not this machine", endpoint.host),
            ),
        },
        backend => (
            format!("the {backend} server at the endpoint"),
            "this backend is a service of its own".to_owned(),
        ),
    }
}

fn endpoint(text: &str) -> Endpoint {
    let text = if text.trim().is_empty() {
        "localhost"
    } else {
        text
    };
    Endpoint::parse(text, C10D_PORT).unwrap_or_else(|_| Endpoint {
        host: text.into(),
        port: C10D_PORT,
    })
}

/// Where the workers meet.
fn master(draft: &mut Draft, arguments: &RunArgs, plan: &LaunchPlan) {
    let (address, port) = (draft.given("master_addr"), draft.given("master_port"));
    let local = draft.given("local_addr");
    let free = match (&plan.master_port, plan.share_store) {
        (MasterPort::Fixed(port), _) => port.to_string(),
        _ => "a free one".to_owned(),
    };
    match &plan.rendezvous {
        RendezvousPlan::Static { endpoint, .. } => {
            let why = "static rendezvous: workers meet at its endpoint";
            let by_flags = arguments.rdzv_endpoint.is_empty();
            let from = |given: Because| {
                if by_flags {
                    given.and(why)
                } else {
                    Because::decided(why)
                }
            };
            draft.line(env::MASTER_ADDR, &*endpoint.host, from(address));
            draft.line(env::MASTER_PORT, endpoint.port.to_string(), from(port));
        }
        RendezvousPlan::Local => {
            let (value, because) = match &plan.local_addr {
                Some(address) => (address.as_str(), local),
                None => ("127.0.0.1", Because::decided("there is no other node")),
            };
            draft.line(env::MASTER_ADDR, value, because);
            draft.line(env::MASTER_PORT, free, Because::decided(hosted(plan)));
        }
        RendezvousPlan::Dynamic { .. } => {
            let (value, because) = match &plan.local_addr {
                Some(own) => (
                    format!("that of the node with rank 0; {own} if it is this one"),
                    local,
                ),
                None => (
                    "that of the node with rank 0".to_owned(),
                    Because::decided("read from the store of the round"),
                ),
            };
            draft.line(env::MASTER_ADDR, value, because);
            draft.line(env::MASTER_PORT, free, Because::decided(hosted(plan)));
        }
    }
}

fn hosted(plan: &LaunchPlan) -> String {
    if plan.share_store {
        "an agent hosts the workers' store there".to_owned()
    } else {
        format!(
            "the worker with rank 0 hosts the store: {}=1",
            env::TORCH_DISABLE_SHARE_RDZV_TCP_STORE
        )
    }
}
