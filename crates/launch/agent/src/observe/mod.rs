//! Consumers of the event stream.
//!
//! ```text
//!  agent ─ AgentEvent ──► EventSinks ──► ConsoleEvents   torchelastic's JSON on stderr
//!                                   ├──► EventFile       all events in our own JSON
//!                                   ├──► AgentMetrics    torchelastic's metrics ─► MetricsRegistry
//!                                   └──► yours           any EventSink, any closure
//! ```
//!
//! The agent calls sinks on its thread, in order. Sinks must not block, and they cannot send
//! anything back to the agent.
//!
//! | file | content |
//! |---|---|
//! | `sink` | [`EventSink`], several of them, and the properties that all events of a run share |
//! | `event_handlers` | sinks by name |
//! | `info_lines` | log lines about the life of the group |
//! | `torchelastic_events` | events in torchelastic's JSON |
//! | `json_events`, `event_file` | every event in rdzv's JSON, and a file of these events |
//! | `node_report` | the status of the node, from its events |
//! | `sample` | resources, output and stacks of workers, for viewers |
//! | `metrics_registry` | named numbers and their sinks |
//! | `torchelastic_metrics` | torchelastic's metrics from rdzv's events |

mod event_file;
mod event_handlers;
mod info_lines;
mod json_events;
mod metrics_registry;
mod node_report;
mod sample;
mod sink;
#[cfg(test)]
mod tests;
mod torchelastic_events;
mod torchelastic_metrics;

pub use crate::beats::{Beat, Beats};
pub use event_file::EventFile;
pub use event_handlers::EventRegistry;
pub use info_lines::InfoLines;
pub use json_events::{event_name, record};
pub use metrics_registry::{
    ConsoleMetrics, DEFAULT_GROUP, MetricPoint, MetricsRegistry, MetricsSink, NullMetrics,
};
pub use node_report::{
    KnownFailure, NodeReport, RestartRow, SharedReport, TimelineSpan, WorkerStatus,
};
pub use rdzv_agent_proto::goodput::{Goodput, TimeClass};
pub use rdzv_agent_proto::group::rfc3339;
pub use sample::{OutputTail, Sampler, ShownStack, WorkerUsage, last_output, stacks, tail, usage};
pub use sink::{EventSink, EventSinks, RunFacts};
pub use torchelastic_events::{ConsoleEvents, TorchelasticEvents, torchelastic_rendezvous};
pub use torchelastic_metrics::AgentMetrics;
