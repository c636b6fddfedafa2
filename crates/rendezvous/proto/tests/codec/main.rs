//! The state of a rendezvous in the form that all agents share.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod golden;
mod hostile;
mod properties;
