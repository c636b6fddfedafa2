//! The agent: what a process calls others with, and is called through.
//!
//! ```text
//!   application ── call ──► peers ──► connection::client ══► another worker
//!        ▲                                 │
//!        └────────── reply ◄───────────────┘   read by whoever waits for it, else by the driver
//!
//!   another worker ══► connection::server ── first step ──► function
//!                            ▲                                 │ has to wait
//!                            └────────── reply ◄── tokio ◄─────┘
//! ```
//!
//! An agent has three threads: the *driver* (waits for all connections and takes the first step of async
//! functions), one of tokio for async functions that wait, and one more of tokio's for each blocking
//! function that runs (`turns`), or large part that is read out of another process.

pub(crate) mod accept;
pub(crate) mod clock;
pub(crate) mod connect;
pub(crate) mod core;
pub(crate) mod counters;
pub(crate) mod driver;
pub(crate) mod gather;
pub(crate) mod peers;
pub(crate) mod poller;

mod call;
mod devices;
mod due;
mod handle;
mod init;
mod members;
#[cfg(test)]
pub(crate) mod tests;
mod turns;
mod under_way;

pub use call::{CallOptions, Destination, Timeout};
pub use handle::{PeerTraffic, RpcAgent, Traffic};
pub use init::{AgentOptions, Membership};
