//! Groups of workers over real stores: how they form, change and end, and what is left when a worker
//! dies at any point of that.

#![allow(clippy::unwrap_used, reason = "tests")]

mod ending;
mod forming;
mod killed;
mod membership;
mod successors;
mod support;
mod watched;
