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
//! The keys, values and options are those of torchelastic's backend of the same name. Compared with
//! it, a value is read by its own key instead of with all others, and etcd notifies of changes
//! instead of being asked once a second. Nodes have no leases here: a lost node is recognised by its
//! missing heartbeats.
//!
//! | module | what it is |
//! |---|---|
//! | `requests` | requests that are repeated while the server is away |
//! | `wire` | paths, forms and JSON |
//! | `state`, `key_watch` | the state, and the watch of its changes |
//! | `encoded_folder` | the agents' store |

mod encoded_folder;
mod key_watch;
mod requests;
mod state;
mod wire;

pub use encoded_folder::open_store;
pub use state::EtcdV2State;
