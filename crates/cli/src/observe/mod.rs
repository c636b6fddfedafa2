//! What people and programs see of a run while it goes on: log lines and events. Nothing here flows
//! back into the run.
//!
//! | file | shows |
//! |---|---|
//! | `log` | log lines in the reference's form, at `LOGLEVEL` |
//! | `console` | the ranks of a round as a log line |
//! | `events` | the run's milestones as JSON (`--event-log-handler console`) |

pub(crate) mod console;
pub(crate) mod events;
pub(crate) mod log;
