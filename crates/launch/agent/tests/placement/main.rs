//! What is found out about machines that a test describes as files, and what is done with it on this
//! one.
#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod affinity;
mod binding;
mod devices;
mod limits;
mod machine;
