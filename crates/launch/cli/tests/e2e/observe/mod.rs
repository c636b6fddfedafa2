//! Tests of the observation of a run: status pages, events and views.

mod events;
pub(crate) mod server;
mod views;
