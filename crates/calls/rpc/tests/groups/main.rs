//! Tests of groups of workers over real stores.
//!
//! They cover how groups form, change and end, and a worker that dies at any point.

#![allow(clippy::unwrap_used, reason = "tests")]

mod ending;
mod forming;
mod killed;
mod membership;
mod successors;
mod support;
mod watched;
