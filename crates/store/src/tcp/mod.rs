//! The store over TCP: the c10d protocol that PyTorch speaks.
//!
//! | file | what |
//! |---|---|
//! | `client` | [`TcpStore`]: how it comes about, and its forms of request and reply |
//! | `calls` | the calls of the store API in those forms |
//! | `options` | what a client needs to know to be made |
//! | `connect` | finding the server, reaching it, making sure that it is a store |
//! | `connected` | operations on one connection, and the errors that they end in |
//! | `host` | starting the server that a master brings along, or sharing it |
//! | `link` | one blocking connection that carries a client machine |
//! | `server` | [`TcpStoreServer`]: one thread that serves all connections |
//! | `listen` | binding: dual-stack, a given host, a given socket |

mod calls;
mod client;
mod connect;
mod connected;
mod host;
mod link;
mod listen;
mod options;
mod server;

pub use client::TcpStore;
pub use options::TcpStoreOptions;
pub use server::{Pinger, ServerOptions, TcpStoreServer, Traffic};
