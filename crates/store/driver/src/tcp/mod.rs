//! The store over TCP: the c10d protocol that PyTorch speaks.
//!
//! | file | content |
//! |---|---|
//! | `client` | [`TcpStore`]: construction, and the calls of the store API |
//! | `options` | the options of a client; the server that a master starts, or shares |
//! | `connect` | connecting to the server, and checking that it is a store |
//! | `connected` | operations on one connection, and the errors that they end in |
//! | `link` | one blocking connection that carries a client machine |
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
    Admission, KeepAlive, Pinger, ServerOptions, TcpStoreServer, TorchClients, Traffic,
};
