#![doc = include_str!("../README.md")]
//!
//! | store | where the data lives | use case |
//! |---|---|---|
//! | [`TcpStore`] | a [`TcpStoreServer`], reached over TCP | jobs on several hosts, PyTorch peers |
//! | [`FileStore`] | one file on a (shared) file system | jobs without a reachable port |
//! | [`HashStore`] | this process | tests, single-process jobs |
//! | [`PrefixStore`] | any of the other stores | a separate key space inside a shared store |

#![warn(clippy::missing_errors_doc)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "rdzv-store needs Linux (epoll and inotify): build it for a Linux target, in a container or \
     virtual machine if necessary"
);

mod deadline;
mod error;
mod file;
mod hash;
pub mod interrupt;
mod local_address;
mod port_user;
mod prefix;
mod reminding;
mod resolve;
mod store;
mod tcp;

pub use error::{StoreError, shown, shown_all, subject};
pub use file::FileStore;
pub use hash::HashStore;
pub use interrupt::interruptible;
pub use local_address::{
    address_for_others, address_towards, address_towards_others, local_address,
};
pub use port_user::{connect_error, port_user};
pub use prefix::PrefixStore;
pub use reminding::wait_reminding;
pub use resolve::resolve;
pub use store::{Breaker, Store, StoreConnection};
pub use tcp::{
    Admission, KeepAlive, PendingWait, Pinger, ServerOptions, ServerTraffic, StorePolicy, TcpStore,
    TcpStoreOptions, TcpStoreServer, TorchClients,
};

pub use rdzv_store_proto::limits::{Limits, parse_size};
pub use rdzv_store_proto::server::ServerStats;
pub use rdzv_trust::{Credentials, Identity, Token, TokenError};
