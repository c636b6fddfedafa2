//! Who hears of the events of this run.

use std::io;
use std::sync::{Arc, Mutex};

use rdzv_agent::observe::{
    EventFile, EventRegistry, EventSink, EventSinks, NodeStatus, ReferenceEvents, RunFacts,
    SharedStatus,
};
use rdzv_agent::{AgentEvent, LaunchPlan};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env;
use tempfile::TempDir;

use super::server::Listener;
use super::{console, prometheus, server, sockets};
use crate::exit::Raised;
use crate::launch::Observers;
use crate::terminal::complain;

/// Everybody who watches the run, and what is there for as long as it goes on.
#[derive(Debug)]
pub(crate) struct Watchers {
    sinks: EventSinks,
    /// The workers' sockets are in it.
    sockets: Option<TempDir>,
}

impl Watchers {
    /// Tells them of an event.
    pub(crate) fn record(&mut self, event: &AgentEvent) {
        self.sinks.record(event);
    }

    /// The run is over.
    pub(crate) fn finish(&mut self) {
        self.sinks.finish();
        // Now, because the program may end without dropping anything.
        self.sockets = None;
    }
}

/// Opens what the user asked for. `shown` is false if the log level hides events.
pub(crate) fn open(
    plan: &mut LaunchPlan,
    observers: &Observers,
    shown: bool,
) -> Result<Watchers, Raised> {
    let sockets = observers.worker_sockets_in.as_deref();
    let sockets = sockets
        .map(sockets::directory)
        .transpose()
        .map_err(|error| refused("--worker-server: make a directory", &error))?;
    plan.worker_sockets = sockets.as_ref().map(|made| made.path().to_owned());
    let facts = RunFacts::new(plan);
    let mut sinks = EventSinks::new();
    sinks.add(console::Console::new(&facts, &observers.handler));
    if shown && let Some(sink) = registry().create(&observers.handler, &facts) {
        sinks.add_boxed(sink);
    }
    if let Some(path) = &observers.events_file {
        let file = EventFile::open(path, facts.clone());
        sinks.add(
            file.map_err(|error| refused(&format!("--events-file {}", path.display()), &error))?,
        );
    }
    let listeners = listeners(observers)?;
    if !listeners.is_empty() {
        let status = Arc::new(Mutex::new(NodeStatus::new(&facts)));
        let (metrics, counters) = prometheus::metrics(&facts, Arc::clone(&status));
        sinks.add(SharedStatus(Arc::clone(&status))).add(counters);
        let told = server::Told {
            liveness: plan.liveness.clone(),
            metrics,
            status,
            worker_sockets: plan.worker_sockets.clone(),
        };
        server::start(listeners, told).map_err(|error| refused("serve the status", &error))?;
    }
    Ok(Watchers { sinks, sockets })
}

/// Bound before anything else happens, so that whoever looks early finds somebody.
fn listeners(observers: &Observers) -> Result<Vec<Listener>, Raised> {
    let mut listeners = Vec::new();
    if let Some(Endpoint { host, port }) = &observers.status {
        let bound = Listener::bind(host, *port, false);
        let what = format!("--status-addr {host}:{port}");
        listeners.push(bound.map_err(|error| refused(&what, &error))?);
    }
    if let Some(port) = observers.health_port {
        let what = format!("{}={port}", env::TORCHELASTIC_HEALTH_CHECK_PORT);
        let bound = Listener::health(port);
        listeners.push(bound.map_err(|error| refused(&what, &error))?);
    }
    Ok(listeners)
}

/// The names of the library, with a console that never waits for its reader.
fn registry() -> EventRegistry {
    let mut registry = EventRegistry::with_defaults();
    registry.register("console", |facts| {
        let mut events = ReferenceEvents::new(facts.clone());
        Box::new(move |event: &AgentEvent| {
            if let Some(line) = events.line(event) {
                complain(&line);
            }
        })
    });
    registry
}

fn refused(what: &str, error: &io::Error) -> Raised {
    Raised::new("OSError", format!("{what}: {error}"))
}
