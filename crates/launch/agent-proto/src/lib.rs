#![doc = include_str!("../README.md")]
//!
//! * [`group`]: the workers of one agent: join, start, watch, restart, finish, diagnose.
//! * [`hang`]: workers that hang: timers, heartbeats, progress.
//! * [`node_check`]: decides from the end of a command whether a node participates.
//! * [`topology`]: the processors and devices that each worker gets.
//!
//! The crate `rdzv-agent` carries out these decisions.

pub mod group;
pub mod hang;
pub mod node_check;
pub mod topology;
