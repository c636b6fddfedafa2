//! Tests of the worker group machine, driven by scripts.
#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod attempts;
mod hangs;
mod options;
mod peers;
mod random;
mod recovery;
mod script;
mod signals;
mod start;
