//! Tests of the observation of a run: status pages, events and views.

mod events;
mod hooks;
pub(crate) mod ledger;
#[cfg(feature = "otlp")]
mod otlp;
pub(crate) mod server;
mod views;
