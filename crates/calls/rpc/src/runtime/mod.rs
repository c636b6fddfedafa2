//! A running agent: other members, connections to them, threads, and calls.
//!
//! ```text
//!   application ── call ──► peers ──► channel::client ══► another worker
//!        ▲                                 │
//!        └────────── reply ◄───────────────┘   read by the waiting thread or by the driver
//!
//!   another worker ══► server ── first step ──► function
//!                       ▲                          │ has to wait
//!                       └─────── reply ◄── tokio ◄─┘
//! ```
//!
//! An agent has three kinds of threads. The *driver* waits for all connections and takes the first
//! step of async functions. One thread of tokio runs async functions that wait. One more thread of
//! tokio runs for each blocking function, and for each large part that is read from another
//! process.
//!
//! | file | contents |
//! |---|---|
//! | [`core`] | the parts of an agent, its handles, and [`core::References`] for the layer above |
//! | [`member`], [`peers`], [`gathers`] | other members, their connections, gathered values |
//! | [`connect`], [`accept`], [`driver`] | new connections, and the thread that waits for them |
//! | [`server`] | the answering side of a connection: requests, their limits, replies |
//! | [`placement`] | the processor that the driver runs on |
//! | [`call`], [`future`] | calls of this worker, and their results |
//! | [`codec`], [`method`], [`run`] | values as messages; typed names; one run of a function |

pub(crate) mod accept;
pub(crate) mod call;
pub(crate) mod codec;
pub(crate) mod connect;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod future;
pub(crate) mod gathers;
pub(crate) mod member;
pub(crate) mod method;
pub(crate) mod peers;
pub(crate) mod placement;
pub(crate) mod run;
pub(crate) mod server;
