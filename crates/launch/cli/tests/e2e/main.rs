//! End-to-end tests: output, exit codes and remaining processes of real runs.
//!
//! The name of a test describes the behaviour. Ids such as SCN-A19 in comments are acceptance
//! scenarios of the launcher's behavioural specification. Workers are one-line shell scripts or the
//! scripted `fixture_worker`.

// This crate contains only tests, but the lint's exception applies only to `#[test]` functions.
#![allow(clippy::unwrap_used)]

mod commands;
mod console;
mod control_group;
mod cost;
mod descriptors;
mod early_signals;
mod elastic;
mod environment;
mod explain;
mod face;
mod failures;
mod first_day;
mod first_process;
mod hangs;
mod harness;
mod job_control;
mod killed;
mod logs;
mod observe;
mod preemption;
mod refusals;
mod schedulers;
mod signals;
mod store;
mod verdict;
mod workers;
