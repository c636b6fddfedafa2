//! Dynamic rendezvous: nodes come and go.
//!
//! | file | what |
//! |---|---|
//! | `c10d` | the backend of that name: finds out what is at the endpoint, and hosts it if it is here |
//! | [`driver`] | takes part over a state that every agent may change |
//! | [`shared`] | where that state can be: to add a backend, begin there |
//! | [`native`] | through a store server of ours, which runs the rendezvous itself |
//! | [`bootstrap`] | where the workers of a round meet |
//! | `reservation` | keeping a port free for the worker that hosts the store |
//! | [`settings`] | the options of `--rdzv-conf` |
//! | [`node`], `host` | what this node is called, and whether it is the one that an endpoint names |

pub mod bootstrap;
mod c10d;
pub mod driver;
mod host;
pub mod native;
pub mod node;
mod reservation;
pub mod settings;
pub mod shared;

pub use c10d::C10dRendezvous;
pub use driver::{Driver, DriverOptions};
pub use host::is_this_machine;
pub use reservation::reserve_port;
pub use shared::{Notice, SharedState, Token, Written};
