//! End-to-end tests: real processes, their output, their exit codes, and what is left of them.
//!
//! Names say the behaviour; ids such as SCN-A19 in comments are the acceptance scenarios of the
//! behavioural specification of the launcher. Workers are one-line shell scripts or the scripted
//! `fixture_worker`.

// All of this crate is tests; the lint's exception knows only functions marked as such.
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
