//! The store over TCP: the c10d protocol that PyTorch speaks.
//!
//! | file | content |
//! |---|---|
//! | `client` | [`TcpStore`]: how it connects, and the methods of the store API |
//! | `options` | options of a client, and the server that a master starts or shares |
//! | `connect` | connecting to the server and checking that it is a store |
//! | `connected` | operations on one connection, and their errors |
//! | `link` | one blocking connection, driven by a client state machine |
//! | `pending` | [`PendingWait`]: a wait that blocks no thread |
//! | `policy` | [`StorePolicy`]: limits and credentials of all stores of a process |
//! | `server` | [`TcpStoreServer`]: one thread that serves all connections |

mod client;
mod connect;
mod connected;
mod link;
mod options;
mod pending;
mod policy;
mod server;

pub use client::TcpStore;
pub use options::TcpStoreOptions;
pub use pending::PendingWait;
pub use policy::StorePolicy;
pub use server::{
    Admission, KeepAlive, Pinger, ServerOptions, ServerTraffic, TcpStoreServer, TorchClients,
};
