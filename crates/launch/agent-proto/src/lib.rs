#![doc = include_str!("../README.md")]
//!
//! * [`goodput`]: classes of a node's time, and repeated steps.
//! * [`group`]: the workers of one agent: join, start, watch, restart, finish, diagnose.
//! * [`hang`]: workers that hang: timers, heartbeats, progress.
//! * [`node_check`]: decides from the end of a command whether a node participates.
//! * [`restart`]: times of one restart.
//! * [`topology`]: the processors and devices that each worker gets.
//!
//! The crate `rdzv-agent` carries out these decisions.

pub mod goodput;
pub mod group;
pub mod hang;
pub mod node_check;
pub mod restart;
pub mod topology;
