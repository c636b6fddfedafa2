//! The observers of a run: events, metrics, status pages.
//!
//! The flags are `--event-log-handler`, `--metrics-handler`, `--events-file`, `--status-addr`,
//! `--worker-server` and, with the feature `otlp`, `--otlp`. A variable sets the health port.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use rdzv_agent::observe::EventRegistry;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env::TORCHELASTIC_HEALTH_CHECK_PORT;

use super::context::Context;
use crate::exit::{Raised, Refusal};
use crate::explanation::{Draft, Provenance};
use crate::number::parse_int;
use crate::suggestion::did_you_mean;

/// Default host of the status address, for users on this node.
const LOOPBACK: &str = "127.0.0.1";

/// Flags for observers. `torchrun` has none of them.
#[derive(Debug, Clone, Args, PartialEq, Default)]
pub(crate) struct ObserveArgs {
    /// Destination of torchelastic's metrics: console or null.
    ///
    /// `console` prints a line for each point on stdout, as torchelastic's ConsoleMetricHandler
    /// does: `[EPOCH][torchelastic]: NAME=VALUE`. The names are in docs/events.md.
    #[arg(long, value_name = "HANDLER", default_value = "null")]
    metrics_handler: String,

    /// Append every event of the run to this file, one JSON object per line.
    ///
    /// Each line is written in one piece, so several nodes may share a file if their file system
    /// appends atomically. The names and keys are in docs/events.md. Unlike --event-log-handler,
    /// the file contains all events.
    #[arg(long, value_name = "FILE")]
    events_file: Option<OsString>,

    /// Serve health, metrics and status over HTTP at this address.
    ///
    /// `/` returns 200 while the agent's own threads make progress, and 503 otherwise. A browser
    /// gets the page of the job instead. `/metrics` is for Prometheus. `/status` shows the worker
    /// group and the coordinator's group as JSON. A port without a host is served on 127.0.0.1.
    /// Port 0 selects a free port; with LOGLEVEL=INFO, the agent logs it. The port in
    /// TORCHELASTIC_HEALTH_CHECK_PORT serves only health, on all addresses.
    #[arg(long, value_name = "[HOST:]PORT")]
    status_addr: Option<String>,

    /// Send the spans of each restart to this OTLP collector.
    ///
    /// The URL is that of an OTLP/HTTP endpoint, such as `http://127.0.0.1:4318`; https is not
    /// supported. rdzv appends `/v1/traces` and sends JSON. The spans are those of docs/goodput.md.
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// Give every worker a socket for its control plane.
    ///
    /// Sets TORCH_WORKER_SERVER_SOCKET to a separate path for each worker. Workers that use
    /// PyTorch's `worker_main` answer requests there. With --status-addr, HTTP requests to
    /// `/workers/LOCAL_RANK/handler/NAME` reach these workers too.
    #[arg(long)]
    worker_server: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Observers {
    /// `true` with `--metrics-handler console`.
    pub(crate) metrics_shown: bool,
    /// Handler of `--event-log-handler`: one of the registry's names.
    pub(crate) handler: String,
    /// Absolute path of `--events-file`.
    pub(crate) events_file: Option<PathBuf>,
    /// Address of `--status-addr`.
    pub(crate) status: Option<Endpoint>,
    /// URL of `--otlp`.
    #[cfg(feature = "otlp")]
    pub(crate) otlp: Option<String>,
    /// Port that serves only health, on all addresses.
    pub(crate) health_port: Option<u16>,
    /// Directory of temporary files, if workers get sockets (`--worker-server`).
    pub(crate) worker_sockets_in: Option<PathBuf>,
}

impl ObserveArgs {
    pub(super) fn resolve(
        &self,
        handler: &str,
        context: &mut Context<'_>,
    ) -> Result<Observers, Refusal> {
        let registry = EventRegistry::with_defaults();
        if !registry.names().any(|name| name == handler) {
            let names: Vec<&str> = registry.names().collect();
            let sentence = format!(
                "--event-log-handler is '{handler}', but must be one of {}{}",
                names.join(", "),
                did_you_mean(handler, names.iter().copied())
            );
            let raised = Raised::new("KeyError", format!("'{handler}'"));
            return Err(raised.plainly(sentence).into());
        }
        let metrics_shown = match self.metrics_handler.as_str() {
            "console" => true,
            "null" => false,
            other => {
                let problem = format!("'{other}' is neither console nor null");
                return Err(Refusal::argument("--metrics-handler", &problem));
            }
        };
        #[cfg(feature = "otlp")]
        if let Some(url) = &self.otlp
            && !url.starts_with("http://")
        {
            let problem = format!(
                "'{url}' does not begin with http://\n\
                 help: rdzv sends without TLS; specify the http:// URL of a collector on this host \
                 or in a trusted network"
            );
            return Err(Refusal::argument("--otlp", &problem));
        }
        let events_file = self.events_file.as_deref();
        Ok(Observers {
            metrics_shown,
            handler: handler.to_owned(),
            events_file: events_file.map(|path| context.absolute(path)),
            status: self.status_addr.as_deref().map(address).transpose()?,
            #[cfg(feature = "otlp")]
            otlp: self.otlp.clone(),
            health_port: context
                .environment
                .text(TORCHELASTIC_HEALTH_CHECK_PORT)
                .and_then(|text| port(&text, context)),
            worker_sockets_in: self.worker_server.then(|| context.temporary_directory()),
        })
    }
}

/// Parses the address at which health, metrics and status are served.
pub(crate) fn address(text: &str) -> Result<Endpoint, Refusal> {
    let bad = || {
        let problem = format!("'{text}' is neither a port nor HOST:PORT");
        Refusal::argument("--status-addr", &problem)
    };
    if let Ok(port) = text.parse() {
        return Ok(Endpoint {
            host: LOOPBACK.to_owned(),
            port,
        });
    }
    // A text without a port takes the default. Parsing with two defaults shows if the text has a
    // port.
    let parsed = |default| Endpoint::parse(text, default).map_err(|_| bad());
    match (parsed(0)?, parsed(1)?) {
        (one, other) if one == other && !one.host.is_empty() => Ok(one),
        _ => Err(bad()),
    }
}

/// Parses the health port. As in `torchrun`, a bad text is ignored.
fn port(text: &str, context: &mut Context<'_>) -> Option<u16> {
    let port = parse_int(text).and_then(|number| u16::try_from(number).ok());
    if port.is_none() {
        context.info(format!(
            "{TORCHELASTIC_HEALTH_CHECK_PORT}='{text}' is not a port, so there is no health check"
        ));
    }
    port
}

pub(super) fn explain(draft: &mut Draft, observers: &Observers) {
    draft.section("Watching");
    draft.flag("events", "event_log_handler");
    if observers.metrics_shown {
        draft.flag("metrics", "metrics_handler");
    }
    if let Some(file) = &observers.events_file {
        let file = file.display().to_string();
        draft.setting("events file", "events_file", file, "");
    }
    if let Some(address) = &observers.status {
        let port = match address.port {
            0 => "a free port, shown in the log",
            _ => "",
        };
        draft.setting("status page", "status_addr", address.to_string(), port);
    }
    if let Some(port) = observers.health_port {
        let provenance = Provenance::variable(TORCHELASTIC_HEALTH_CHECK_PORT);
        let port = format!("port {port}, all addresses");
        draft.line("health check", port, provenance);
    }
    draft.flag("sockets of workers", "worker_server");
    draft.flag("report file", "report");
    draft.flag("exit code of", "exit_code");
    draft.flag("after a failure", "on_failure");
    draft.flag("at a restart", "on_restart");
}

#[cfg(test)]
mod tests {
    use super::super::context::{Environment, Note, ThisHost};
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
            let text = address(bad).unwrap_err().to_string();
            assert!(text.contains(&format!("'{bad}'")), "{text}");
        }
    }

    #[test]
    fn a_health_port_that_is_none_is_reported_and_ignored() {
        let environment = Environment::default();
        let mut context = Context::new(&environment, &ThisHost);
        assert_eq!(port("29501", &mut context), Some(29501));
        assert_eq!(context.notes, []);
        for bad in ["http", "70000", ""] {
            assert_eq!(port(bad, &mut context), None);
        }
        let notes = context.notes;
        assert!(notes.iter().all(|note| matches!(note, Note::Info(_))));
        assert_eq!(notes.len(), 3);
    }
}
