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
//! An agent has several kinds of threads. The *driver* waits for all connections and usually
//! takes the first step of an async function. One tokio thread runs async functions that wait. Each
//! blocking function, and each large read that the driver begins, runs on a thread of tokio's
//! blocking pool. A temporary thread opens each connection.
//!
//! | file | contents |
//! |---|---|
//! | [`core`] | the parts of an agent, its handles, and [`core::References`] for the layer above |
//! | [`member`], [`peers`], [`gathers`] | other members, their connections, gathered values |
//! | [`connect`], [`accept`], [`driver`] | new connections, and the thread that waits for them |
//! | [`server`] | the answering side of a connection: requests, their limits, replies |
//! | [`placement`] | the processor that the driver runs on |
//! | [`call`], [`future`] | calls of this worker, and their results |
//! | [`introduction`] | device memory that this worker may lend to others on its host |
//! | [`codec`], [`method`], [`run`] | values as messages; typed names; one run of a function |

pub(crate) mod accept;
pub(crate) mod call;
pub(crate) mod codec;
pub(crate) mod connect;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod future;
pub(crate) mod gathers;
pub(crate) mod introduction;
pub(crate) mod member;
pub(crate) mod method;
pub(crate) mod peers;
pub(crate) mod placement;
pub(crate) mod run;
pub(crate) mod server;
