//! What is made of the one stream of events, and who may listen.
//!
//! ```text
//!  agent ── AgentEvent ──► EventSinks ──► ConsoleEvents   the reference's JSON on stderr
//!                                    ├──► EventFile       all events in our own JSON
//!                                    ├──► AgentMetrics    the reference's metrics ─► MetricsRegistry
//!                                    └──► yours           any EventSink, any closure
//! ```
//!
//! Nothing flows back. Sinks are told on the agent's thread, in order, and must not block.
//!
//! | file | holds |
//! |---|---|
//! | `sink` | [`EventSink`], several of them, and their names |
//! | `facts` | what all events of a run have in common |
//! | `reference` | events in the reference's JSON |
//! | `rendezvous` | news of the rendezvous in the reference's JSON |
//! | `record`, `file` | every event in JSON of our own, and a file of that |
//! | `status` | what the events so far add up to |
//! | `metrics` | named numbers and where they go |
//! | `measure` | the reference's metrics from our events |

mod facts;
mod file;
mod measure;
mod metrics;
mod record;
mod reference;
mod rendezvous;
mod sink;
mod status;
#[cfg(test)]
mod tests;

pub use facts::RunFacts;
pub use file::EventFile;
pub use measure::AgentMetrics;
pub use metrics::{
    ConsoleMetrics, DEFAULT_GROUP, MetricPoint, MetricsRegistry, MetricsSink, NullMetrics,
};
pub use record::{event_name, record, rfc3339};
pub use reference::{ConsoleEvents, ReferenceEvents};
pub use rendezvous::reference_rendezvous;
pub use sink::{EventRegistry, EventSink, EventSinks};
pub use status::{NodeStatus, SharedStatus, WorkerStatus};
