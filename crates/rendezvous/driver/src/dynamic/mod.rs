//! Dynamic rendezvous: nodes come and go.
//!
//! | file | what |
//! |---|---|
//! | `c10d` | the backend of that name: finds out what is at the endpoint, and hosts it if it is here |
//! | [`driver`] | takes part over a state that every agent may change |
//! | [`shared`] | where that state can be: to add a backend, begin there |
//! | [`native`] | through a store server of ours, which runs the rendezvous itself |
//! | `extension`, `note` | what makes a store server a coordinator; its record |
//! | `voters` | what makes a store server a voter; finding the coordinator among voters |
//! | `probe` | finding out whether a server is a coordinator, and connecting to it |
//! | `options` | the parameters and options of `c10d` |
//! | [`bootstrap`] | the address of the workers' store, and its port |
//! | `watch` | a call that waits in a store for as long as its owner wants |
//! | `outage` | notices about a state that does not answer |
//! | `waiting` | what a join waits for, told to people |
//! | [`node`] | what this node is called, and whether it is the one that an endpoint names |

pub mod bootstrap;
pub(crate) mod c10d;
pub mod driver;
mod extension;
pub mod native;
pub mod node;
mod note;
mod options;
mod outage;
mod probe;
pub mod shared;
mod voters;
mod waiting;
mod watch;

pub use bootstrap::reserve_port;
pub use c10d::{C10dRendezvous, C10dState};
pub use driver::{Driver, DriverOptions};
pub use node::is_this_machine;
pub use shared::{Notice, SharedState, Token, Written};
pub use voters::StoreVoter;
