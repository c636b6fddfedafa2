//! Tests of the observation of a run: status pages and events.

mod events;
pub(crate) mod server;
