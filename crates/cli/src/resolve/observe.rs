//! Who watches the run: `--event-log-handler`, `--events-file`, `--status-addr` and the health port.

use std::path::PathBuf;

use rdzv_agent::observe::EventRegistry;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env::TORCHELASTIC_HEALTH_CHECK_PORT;

use super::{Environment, Machine, Note, output};
use crate::args::RunArgs;
use crate::args::number::parse_int;
use crate::exit::{Raised, Refusal};

/// Where a port without a host is: what it tells is for those who are on this node.
const HERE: &str = "127.0.0.1";

/// Who watches the run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Observers {
    /// `--event-log-handler`: one of the registry's names.
    pub(crate) handler: String,
    /// `--events-file`, made absolute.
    pub(crate) events_file: Option<PathBuf>,
    /// `--status-addr`.
    pub(crate) status: Option<Endpoint>,
    /// The port at which nothing but health is told, on all addresses.
    pub(crate) health_port: Option<u16>,
    /// `--worker-server`: where temporary files are, if workers get sockets.
    pub(crate) worker_sockets_in: Option<PathBuf>,
}

/// Reads everything that concerns observers.
pub(super) fn plan(
    arguments: &RunArgs,
    environment: &Environment,
    machine: &dyn Machine,
    notes: &mut Vec<Note>,
) -> Result<Observers, Refusal> {
    let handler = arguments.event_log_handler.clone();
    if !EventRegistry::with_defaults()
        .names()
        .any(|name| name == handler)
    {
        return Err(Raised::new("KeyError", format!("'{handler}'")).into());
    }
    let observe = &arguments.observe;
    Ok(Observers {
        handler,
        events_file: observe
            .events_file
            .as_deref()
            .map(|path| machine.working_directory().join(path)),
        status: observe.status_addr.as_deref().map(address).transpose()?,
        health_port: environment
            .text(TORCHELASTIC_HEALTH_CHECK_PORT)
            .and_then(|text| port(&text, notes)),
        worker_sockets_in: observe
            .worker_server
            .then(|| output::temporary_directory(environment, machine)),
    })
}

fn address(text: &str) -> Result<Endpoint, Refusal> {
    let bad = || {
        Refusal::Usage(format!(
            "argument --status-addr: '{text}' is neither a port nor HOST:PORT"
        ))
    };
    if let Ok(port) = text.parse() {
        return Ok(Endpoint {
            host: HERE.to_owned(),
            port,
        });
    }
    // A missing port would be the default, so it must not have one.
    let parsed = |default| Endpoint::parse(text, default).map_err(|_| bad());
    match (parsed(0)?, parsed(1)?) {
        (one, other) if one == other && !one.host.is_empty() => Ok(one),
        _ => Err(bad()),
    }
}

/// As in the reference, what is no port is no reason to refuse the run.
fn port(text: &str, notes: &mut Vec<Note>) -> Option<u16> {
    let port = parse_int(text).and_then(|number| u16::try_from(number).ok());
    if port.is_none() {
        notes.push(Note::Info(format!(
            "{TORCHELASTIC_HEALTH_CHECK_PORT}='{text}' is no port, so there is no health check"
        )));
    }
    port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_here_or_a_host_with_a_port() {
        let endpoint = |host: &str, port| Endpoint {
            host: host.to_owned(),
            port,
        };
        assert_eq!(address("8080"), Ok(endpoint("127.0.0.1", 8080)));
        assert_eq!(address("0.0.0.0:0"), Ok(endpoint("0.0.0.0", 0)));
        assert_eq!(address("[::1]:9"), Ok(endpoint("::1", 9)));
        for bad in ["", "node", "node:", ":80", "70000", "node:x"] {
            let Err(Refusal::Usage(text)) = address(bad) else {
                panic!("'{bad}' is accepted");
            };
            assert!(text.contains(&format!("'{bad}'")), "{text}");
        }
    }

    #[test]
    fn a_health_port_that_is_none_is_told_and_ignored() {
        let mut notes = Vec::new();
        assert_eq!(port("29501", &mut notes), Some(29501));
        assert_eq!(notes, []);
        for bad in ["http", "70000", ""] {
            assert_eq!(port(bad, &mut notes), None);
        }
        assert!(notes.iter().all(|note| matches!(note, Note::Info(_))));
        assert_eq!(notes.len(), 3);
    }
}
