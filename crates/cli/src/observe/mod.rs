//! The view of a run from outside while it goes on: log lines and events. Nothing here flows back
//! into the run.
//!
//! | file | holds |
//! |---|---|
//! | `log` | log lines in the form of `torchrun`, at `LOGLEVEL` |
//! | `event_sinks` | the receivers of events |
//! | `status_server` | health, metrics and status over HTTP |
//! | `prometheus` | the metrics |

pub(crate) mod event_sinks;
pub(crate) mod log;
mod prometheus;
mod status_server;
