//! Rendezvous over etcd: the state outlives every agent, and nobody has to host it.
//!
//! | module | what it is |
//! |---|---|
//! | [`options`] | what `--rdzv-endpoint` and `--rdzv-conf` say about the server |
//! | [`http`] | one request, one answer; or an answer that does not end |
//! | [`failure`] | why a request failed, and what to repeat |

#![allow(dead_code, reason = "the backends on top are being built")]

pub(crate) mod failure;
pub(crate) mod http;
pub(crate) mod options;
pub(crate) mod tls;
