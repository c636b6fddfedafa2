//! What people and programs see of a run while it goes on: log lines and events. Nothing here flows
//! back into the run.
//!
//! | file | shows |
//! |---|---|
//! | `log` | log lines in the reference's form, at `LOGLEVEL` |
//! | `sinks` | who hears of events |
//! | `server` | health, metrics and status over HTTP |
//! | `sockets` | the directory of the workers' sockets |
//! | `prometheus` | the metrics |
//! | `console` | the ranks of a round as a log line |

pub(crate) mod console;
pub(crate) mod log;
mod prometheus;
mod server;
pub(crate) mod sinks;
mod sockets;
