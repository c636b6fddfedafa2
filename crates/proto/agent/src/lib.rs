//! The decisions of the elastic agent, without processes, files or clocks.
//!
//! * [`group`]: the workers of one agent: join, start, watch, restart, finish; why one failed.
//! * [`hang`]: workers that hang: timers, heartbeats, progress.
//! * [`topology`]: which processors and devices a worker gets.
//!
//! The crate `rdzv-agent` carries them out. The API of this crate follows the releases of that one.

pub mod group;
pub mod hang;
pub mod topology;
