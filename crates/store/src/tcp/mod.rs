//! The store over TCP.
//!
//! | file | what |
//! |---|---|
//! | `client` | [`TcpStore`]: the calls of the store API as operations on the wire |
//! | `options` | what a client needs to know to be made |
//! | `connect` | finding the server, reaching it, making sure that it is a store |
//! | `link` | one blocking connection that carries a client machine |

mod client;
mod connect;
mod link;
mod options;

pub use client::TcpStore;
pub use options::TcpStoreOptions;
