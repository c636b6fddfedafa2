//! An agent at work: the other members, the connections to them, its threads, and the calls that it
//! makes.
//!
//! ```text
//!   application ── call ──► peers ──► channel::client ══► another worker
//!        ▲                                 │
//!        └────────── reply ◄───────────────┘   read by the thread that waits for it, else by the driver
//!
//!   another worker ══► server ── first step ──► function
//!                       ▲                          │ has to wait
//!                       └─────── reply ◄── tokio ◄─┘
//! ```
//!
//! An agent has three threads: the *driver* (waits for all connections and takes the first step of
//! async functions), one of tokio for async functions that wait, and one more of tokio's for each
//! blocking function that runs, or large part that is read out of another process.
//!
//! | file | contents |
//! |---|---|
//! | [`core`] | the parts of an agent, and its handles; [`core::References`] is what it needs of remote references |
//! | [`member`], [`peers`], [`gathers`] | other members, connections to them, values that they gather |
//! | [`connect`], [`accept`], [`driver`] | connections begin, and are waited for |
//! | [`server`] | the answering side of a connection: requests, their limits, replies |
//! | [`placement`] | the processor that the driver runs on |
//! | [`call`], [`future`] | a call is made, and its result taken |
//! | [`codec`], [`method`], [`run`] | values to messages and back; typed names; one run of a function |

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
