//! Rendezvous over etcd: the state outlives every agent, and nobody has to host it.
//!
//! The backend `etcd` speaks the v3 API through the JSON gateway that an etcd server has beside its
//! gRPC port (etcd 3.4 and later, on by default). What it gains over a store that an agent hosts:
//! a lease per node, so that a node's end is noticed by the server's clock alone; a watch, so that
//! nobody asks again and again; and a state that survives the loss of any agent and a restart of
//! the server in the middle of a round.
//!
//! | module | what it is |
//! |---|---|
//! | `backend` | the backends: all of the below for one node |
//! | `options` | what `--rdzv-endpoint` and `--rdzv-conf` say about the server |
//! | `layout` | which keys a run has, and how they go away |
//! | `state`, `leases` | the state of a run, and who is alive |
//! | `watch` | the call that follows the changes of a run |
//! | `store` | the agents' store of one round: a folder of keys |
//! | `v3`, `wire` | the v3 API: requests that are repeated, and their JSON |
//! | `torchrun` | the refusal of a run that agents of torchrun use through the v2 API |
//! | `failure` | why a request failed, and how long to repeat one |
//! | `http` | one request, one answer; or an answer that does not end |

mod backend;
pub(crate) mod failure;
pub(crate) mod http;
mod layout;
mod leases;
pub(crate) mod options;
mod state;
mod store;
mod torchrun;
mod v3;
mod watch;
mod wire;

pub(crate) use backend::{OPTIONS, from_parameters};
pub use options::{EtcdOptions, TlsFiles};
pub use state::EtcdState;
pub use store::EtcdStore;
