//! Which rendezvous is used, and what the run is called.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_agent::RendezvousPlan;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{BackendRegistry, RendezvousError, RendezvousParameters};

use super::nodes::Nodes;
use super::reasons::MeetingReasons;
use super::{Machine, Note};
use crate::args::RunArgs;
use crate::args::conventions::bad_integer;
use crate::args::number::parse_int;
use crate::exit::{Raised, Refusal};

/// Port of static rendezvous if `--master-port` is not given.
const MASTER_PORT: i64 = 29500;

/// Port of a c10d endpoint that names none.
const C10D_PORT: u16 = 29400;

/// How long static rendezvous waits for the other nodes, in seconds.
const STATIC_TIMEOUT: i64 = 900;

/// The rendezvous and the name of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) plan: RendezvousPlan,
    pub(super) run_id: RunId,
    /// The effective backend, for events.
    pub(super) backend: String,
    pub(super) reasons: MeetingReasons,
}

/// Says which flags have no effect with the chosen backend, or another than they seem to have.
pub(super) fn warn(arguments: &RunArgs, nodes: &Nodes, notes: &mut Vec<Note>) {
    let backend = &arguments.rdzv_backend;
    if alone(arguments, nodes) {
        return;
    }
    if backend != "static" && arguments.rdzv_endpoint.is_empty() {
        notes.push(Note::Warning(
            "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not \
             specified."
                .to_owned(),
        ));
    }
    if backend != "static" && arguments.node_rank != 0 {
        notes.push(Note::Warning(format!(
            "node_rank is only used for static rdzv_backend. It will be ignored for \
             rdzv_backend={backend}."
        )));
    }
    if backend == "static" && nodes.least < nodes.most {
        notes.push(Note::Warning(format!(
            "--nnodes {} with static rendezvous means exactly {} nodes: only a dynamic rendezvous \
             (--rdzv-backend c10d) can start with fewer.",
            arguments.nnodes, nodes.most
        )));
    }
}

/// Reads `--rdzv-conf`.
pub(super) fn settings(text: &str) -> Result<BTreeMap<String, String>, Raised> {
    let mut settings = BTreeMap::new();
    if text.trim().is_empty() {
        return Ok(settings);
    }
    for pair in text.trim().split(',') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(Raised::value_error(
                "The rendezvous configuration string must be in format \
                 <key1>=<value1>,...,<keyN>=<valueN>.",
            ));
        }
        if value.is_empty() {
            return Err(Raised::value_error(format!(
                "The rendezvous configuration option '{key}' must have a value specified."
            )));
        }
        settings.insert(key.to_owned(), value.to_owned());
    }
    Ok(settings)
}

/// Decides where the nodes meet.
pub(super) fn choose(
    arguments: &RunArgs,
    nodes: &Nodes,
    settings: &BTreeMap<String, String>,
    backends: &BackendRegistry,
    machine: &dyn Machine,
    notes: &mut Vec<Note>,
) -> Result<Meeting, Refusal> {
    let given = arguments.rdzv_id.as_deref();
    if given == Some("") {
        notes.push(Note::Warning(
            "the run id is empty, so a random one is used".to_owned(),
        ));
    }
    let given = given.filter(|id| !id.is_empty());
    if alone(arguments, nodes) {
        let run_id = given.map_or_else(|| machine.random_id(), str::to_owned);
        let reason = if arguments.standalone {
            "--standalone: this node alone"
        } else {
            "one node, and neither --rdzv-endpoint nor --master-port: nobody to meet"
        };
        if arguments.standalone {
            let stars = "*".repeat(38);
            notes.push(Note::Info(format!(
                "\n{stars}\nRendezvous info:\n--rdzv-backend=c10d --rdzv-endpoint=localhost:0 \
                 --rdzv-id={run_id}\n{stars}\n"
            )));
        }
        let plan = if nodes.most == 1 {
            RendezvousPlan::Local
        } else {
            // Nobody can find this node there, which is what was asked for.
            let endpoint = "localhost:0";
            let parameters = dynamic("c10d", endpoint, &run_id, nodes, arguments, settings)?;
            RendezvousPlan::Dynamic { parameters }
        };
        return Ok(Meeting {
            plan,
            run_id: RunId::new(run_id),
            backend: "c10d".to_owned(),
            reasons: MeetingReasons {
                backend: reason.to_owned(),
                endpoint: reason.to_owned(),
                run_id: unnamed(given, "a new UUID for each run"),
            },
        });
    }
    let run_id = match arguments.rdzv_id.as_deref() {
        None => "none".to_owned(),
        Some("") => machine.random_id(),
        Some(id) => id.to_owned(),
    };
    let plan = match arguments.rdzv_backend.as_str() {
        "" => {
            return Err(Raised::value_error(
                "The rendezvous backend name must be a non-empty string.",
            )
            .into());
        }
        "static" => fixed(arguments, nodes, settings)?,
        name if !backends.contains(name) => {
            return Err(Raised::value_error(format!(
                "The rendezvous backend '{name}' is not registered. Did you forget to call \
                 `register`?"
            ))
            .into());
        }
        name => {
            let endpoint = arguments.rdzv_endpoint.as_str();
            let parameters = dynamic(name, endpoint, &run_id, nodes, arguments, settings)?;
            if name == "c10d" && nodes.most == 1 && nobody_else_finds(endpoint) {
                // There is nothing to do for the backend, except to look at its options.
                backends.create(&parameters).map_err(value_error)?;
                RendezvousPlan::Local
            } else {
                RendezvousPlan::Dynamic { parameters }
            }
        }
    };
    let endpoint = match &plan {
        RendezvousPlan::Static { .. } if arguments.rdzv_endpoint.is_empty() => {
            "static rendezvous without --rdzv-endpoint: --master-addr and --master-port (29500 if \
             that is not given)"
        }
        RendezvousPlan::Local => {
            "one node, and an endpoint at which only this node is: nobody to meet"
        }
        RendezvousPlan::Dynamic { .. } if arguments.rdzv_endpoint.is_empty() => {
            "no --rdzv-endpoint: where this backend looks by itself"
        }
        _ => "",
    };
    let fallback = match given {
        None if arguments.rdzv_id.is_some() => "it is empty: a new UUID for each run",
        _ => "the same for all jobs that name none",
    };
    Ok(Meeting {
        plan,
        run_id: RunId::new(run_id),
        backend: arguments.rdzv_backend.clone(),
        reasons: MeetingReasons {
            backend: String::new(),
            endpoint: endpoint.to_owned(),
            run_id: unnamed(given, fallback),
        },
    })
}

/// The reason for the id of a run that nobody named.
fn unnamed(given: Option<&str>, reason: &str) -> String {
    given.map_or_else(|| reason.to_owned(), |_| String::new())
}

fn dynamic(
    backend: &str,
    endpoint: &str,
    run_id: &str,
    nodes: &Nodes,
    arguments: &RunArgs,
    settings: &BTreeMap<String, String>,
) -> Result<RendezvousParameters, Raised> {
    let mut parameters = RendezvousParameters::new(
        backend,
        endpoint,
        run_id,
        nodes.least,
        nodes.most,
        settings.clone(),
    )
    .map_err(value_error)?;
    parameters.local_addr = arguments
        .local_addr
        .clone()
        .filter(|address| !address.is_empty());
    Ok(parameters)
}

fn value_error(error: RendezvousError) -> Raised {
    Raised::value_error(error.to_string())
}

/// Whether a c10d endpoint is one at which only this agent itself would be.
fn nobody_else_finds(endpoint: &str) -> bool {
    endpoint.trim().is_empty()
        || Endpoint::parse(endpoint, C10D_PORT).is_ok_and(|endpoint| {
            endpoint.port == 0 && ["localhost", "127.0.0.1", "::1"].contains(&&*endpoint.host)
        })
}

/// Whether this node needs nobody: told so, or because nothing points at other nodes.
fn alone(arguments: &RunArgs, nodes: &Nodes) -> bool {
    arguments.standalone
        || (arguments.rdzv_backend == "static"
            && arguments.rdzv_endpoint.is_empty()
            && arguments.master_port.is_none()
            && nodes.most == 1)
}

fn fixed(
    arguments: &RunArgs,
    nodes: &Nodes,
    settings: &BTreeMap<String, String>,
) -> Result<RendezvousPlan, Refusal> {
    let text = if arguments.rdzv_endpoint.is_empty() {
        let port = arguments.master_port.unwrap_or(MASTER_PORT);
        format!("{}:{port}", arguments.master_addr)
    } else {
        arguments.rdzv_endpoint.trim().to_owned()
    };
    if text.is_empty() {
        return Err(Raised::value_error(
            "Endpoint is missing in endpoint. Try to add --master-addr and --master-port",
        )
        .into());
    }
    let endpoint = endpoint(&text, 0)?;
    // Only a port that is missing follows the default.
    if endpoint.port != self::endpoint(&text, 1)?.port {
        return Err(Raised::value_error(format!(
            "port is missing in endpoint: {text}. Try to specify --master-port"
        ))
        .into());
    }
    let timeout = match settings.get("timeout") {
        Some(text) => parse_int(text).ok_or_else(|| bad_integer(text))?,
        None => STATIC_TIMEOUT,
    };
    let node_rank = u32::try_from(arguments.node_rank)
        .ok()
        .filter(|rank| *rank < nodes.most)
        .ok_or_else(|| {
            Raised::value_error(format!(
                "--node-rank {} is not in 0..{} (--nnodes {}): nodes are numbered from 0",
                arguments.node_rank, nodes.most, arguments.nnodes
            ))
        })?;
    Ok(RendezvousPlan::Static {
        endpoint,
        node_rank: GroupRank(node_rank),
        nodes: nodes.most,
        timeout: Duration::from_secs(u64::try_from(timeout).unwrap_or(0)),
    })
}

fn endpoint(text: &str, default_port: u16) -> Result<Endpoint, Raised> {
    Endpoint::parse(text, default_port).map_err(|error| Raised::value_error(error.to_string()))
}
