//! Dynamic rendezvous: nodes come and go.

pub mod shared;

pub use shared::{SharedState, Token, Written};
