//! Rendezvous over etcd: the state outlives every agent, and no agent hosts it.
//!
//! The backend `etcd` uses the v3 API through the JSON gateway of an etcd server. The gateway uses
//! the same port as gRPC (etcd 3.4 and later, enabled by default). etcd has three advantages over a
//! store that an agent hosts:
//!
//! * Each node has a lease, so the server notices when a node ends.
//! * Nodes use a watch, so no node polls.
//! * The state survives the loss of any agent, and a restart of the server during a round.
//!
//! | module | contents |
//! |---|---|
//! | `backend` | the two backends: they combine the modules below for one node |
//! | `options` | options for the server in `--rdzv-endpoint` and `--rdzv-conf` |
//! | `layout` | the keys of a run, and when etcd deletes them |
//! | `state`, `leases` | the state of a run, and its live nodes |
//! | `watch` | the thread that follows the changes of a run |
//! | `store` | the agents' store of one round: a folder of keys |
//! | `v3`, `wire` | the v3 API: requests with retries, and their JSON |
//! | `torchrun` | the refusal of a run that agents of torchrun use through the v2 API |
//! | `failure` | the causes of a failed request, and the limits of retries |
//! | `http` | one request with a complete or a streamed answer |

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
pub use options::{EtcdOptions, EtcdTlsFiles};
pub use state::EtcdState;
pub use store::EtcdStore;
