//! Receivers of events, and the properties that all events of a run share.

use std::fmt;
use std::path::Path;

use crate::host::HostName;
use crate::{AgentConfig, AgentEvent};

/// Receiver of every event of a run, in order.
///
/// Every closure that takes an event is an event sink. [`EventSinks`] gives several sinks to one
/// run.
pub trait EventSink {
    /// Records one event.
    /// The agent calls this on its thread between two decisions. It supervises nothing during the
    /// call, so the call must not block.
    fn record(&mut self, event: &AgentEvent);

    /// Ends the recording; called once, after the last event.
    /// The call may wait a moment until the recorded events are written.
    fn finish(&mut self) {}
}

impl<F: FnMut(&AgentEvent)> EventSink for F {
    fn record(&mut self, event: &AgentEvent) {
        self(event);
    }
}

/// Several sinks; each receives every event, in the order of their addition.
#[derive(Default)]
pub struct EventSinks(Vec<Box<dyn EventSink>>);

impl EventSinks {
    /// Creates an empty list of sinks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sink.
    pub fn add(&mut self, sink: impl EventSink + 'static) -> &mut Self {
        self.add_boxed(Box::new(sink))
    }

    /// Adds a boxed sink, such as one from a registry.
    /// See [`EventRegistry::create`](super::EventRegistry::create).
    pub fn add_boxed(&mut self, sink: Box<dyn EventSink>) -> &mut Self {
        self.0.push(sink);
        self
    }
}

impl EventSink for EventSinks {
    fn record(&mut self, event: &AgentEvent) {
        for sink in &mut self.0 {
            sink.record(event);
        }
    }

    fn finish(&mut self) {
        for sink in &mut self.0 {
            sink.finish();
        }
    }
}

impl fmt::Debug for EventSinks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "EventSinks({})", self.0.len())
    }
}

/// Name of torchrun's function that runs the script with `--run-path`.
const RUN_PATH_NAME: &str = "run_script_path";

/// Properties of the run and the node that all events share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFacts {
    /// Name of the job.
    pub run_id: String,
    /// Role of this node's workers.
    pub role: String,
    /// Name of this host.
    pub host: HostName,
    /// Name of the rendezvous backend.
    pub backend: String,
    /// Base name of the program that workers execute.
    /// With `--run-path`, this is the name of torchrun's function. For a
    /// [`WorkerSpec`](crate::api::WorkerSpec), it is the name of the entry point.
    pub entry_point: String,
    /// Maximum number of restarts after failures (`--max-restarts`).
    pub max_restarts: u32,
    /// Number of workers on this node.
    pub local_world_size: u32,
}

impl RunFacts {
    /// Returns the properties of a launch on this host.
    pub fn new(plan: &AgentConfig) -> Self {
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
            run_id: plan.identity.run_id.to_string(),
            role: plan.identity.role.clone(),
            host: HostName::This,
            backend: plan.rendezvous.plan.backend().to_owned(),
            entry_point,
            max_restarts: plan.restarts.max_restarts,
            local_world_size: plan.identity.local_world_size,
        }
    }
}
