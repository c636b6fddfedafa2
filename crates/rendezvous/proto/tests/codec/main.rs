//! The state of a rendezvous as all agents write it.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod golden;
mod hostile;
mod properties;
