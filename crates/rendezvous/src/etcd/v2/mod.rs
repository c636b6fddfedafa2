//! Rendezvous over etcd's v2 API, for clusters that still serve it (before etcd 3.6, and from 3.4 on
//! only with `--enable-v2=true`), together with Python's agents.
//!
//! ```text
//! /torch/elastic/rendezvous/<run id>     the state: base64 of the pickle; cleared two hours after
//!                                        it was written last
//! /torch/elastic/store/<key>             the agents' stores of all runs and rounds; key and value
//!                                        are base64
//! ```
//!
//! The keys, values and options are those of the reference's backend of the same name. Compared with
//! it, a value is read by its own key instead of with all others, and changes are told by etcd
//! instead of being asked for once a second. Nodes have no leases here: that one is gone is seen by
//! its missing heartbeats.
//!
//! | module | what it is |
//! |---|---|
//! | `client` | requests that are repeated while the server is away |
//! | `wire` | paths, forms and JSON |
//! | `state`, `watch` | the state, and who is told of its changes |
//! | `store` | the agents' store |

mod client;
mod state;
mod store;
mod watch;
mod wire;

pub use state::EtcdV2State;
pub use store::EtcdV2Store;
