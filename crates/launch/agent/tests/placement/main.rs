//! Topology and binding on machines that consist of files, and on this machine.
#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod affinity;
mod binding;
mod devices;
mod limits;
mod machine;
