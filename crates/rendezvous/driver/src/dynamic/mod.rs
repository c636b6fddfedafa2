//! Dynamic rendezvous: nodes join and leave.
//!
//! | file | contents |
//! |---|---|
//! | `c10d` | the backend `c10d`: detects the server at the endpoint, or hosts one there |
//! | [`driver`] | the rendezvous over a state that every agent can change |
//! | [`shared`] | the interface to that state: to add a backend, start there |
//! | [`native`] | the rendezvous through a store server of rdzv, which runs it |
//! | `extension`, `note` | the coordinator in a store server; its record |
//! | `voters` | the voter in a store server; the search for the coordinator among voters |
//! | `probe` | connects to a server and detects whether it is a coordinator |
//! | `options` | the parameters and options of `c10d` |
//! | [`bootstrap`] | the address and port of the workers' store |
//! | `watch` | a call that waits in a store until its owner ends it |
//! | `outage` | notices about a state that does not answer |
//! | `waiting` | reports about the wait of a join |
//! | [`node`] | the name of this node, and whether an endpoint names this machine |

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
pub use shared::{Notice, SharedState, StateToken, Written};
pub use voters::StoreVoter;
