//! The decisions of the elastic agent, without processes, files or clocks.
//!
//! * [`group`]: the workers of one agent: join, start, watch, restart, finish; why one failed.
//! * [`hang`]: workers that hang: timers, heartbeats, progress.
//! * [`node_check`]: whether a node takes part, by the end of a command.
//! * [`topology`]: which processors and devices a worker gets.
//!
//! The crate `rdzv-agent` carries them out. The API of this crate follows the releases of that one.

pub mod group;
pub mod hang;
pub mod node_check;
pub mod topology;
