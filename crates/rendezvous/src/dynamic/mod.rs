//! Dynamic rendezvous: nodes come and go.
//!
//! | file | what |
//! |---|---|
//! | [`shared`] | where a state can be that every agent may change: to add a backend, begin there |
//! | [`bootstrap`] | where the workers of a round meet |
//! | [`settings`] | the options of `--rdzv-conf` |
//! | [`node`] | what this node is called |

pub mod bootstrap;
pub mod node;
pub mod settings;
pub mod shared;

pub use shared::{Notice, SharedState, Token, Written};
