//! Observation of a running job: log lines, events, status pages.
//!
//! Nothing here participates in the agent's decisions.
//!
//! | file | holds |
//! |---|---|
//! | `log` | log lines at `LOGLEVEL`, in the form of `torchrun` or as plain sentences |
//! | `story` | the events as sentences, for `rdzv run` |
//! | `event_sinks` | the receivers of events |
//! | `status_server` | health, metrics and status over HTTP |
//! | `status_row` | the state of the run on a terminal |
//! | `hooks` | commands that run at a restart and after a failure |
//! | `otlp` | the restarts as spans of OpenTelemetry |
//! | `prometheus`, `group_metrics` | the metrics of the run and of the coordinator's group |

pub(crate) mod event_sinks;
pub(crate) mod group_metrics;
pub(crate) mod hooks;
pub(crate) mod log;
#[cfg(feature = "otlp")]
mod otlp;
mod prometheus;
mod status_row;
pub(crate) mod status_server;
pub(crate) mod story;

/// Removes the name of the run (`[name] `) from the start of a message.
fn without_name(text: &str) -> &str {
    let named = text.strip_prefix('[');
    let named = named.and_then(|text| text.split_once("] "));
    named.map_or(text, |(_, text)| text)
}
