//! Tests of the observation of a run: status pages, events and views.

mod events;
mod hooks;
pub(crate) mod ledger;
pub(crate) mod server;
mod views;
