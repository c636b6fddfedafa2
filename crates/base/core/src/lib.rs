#![doc = include_str!("../README.md")]
//!
//! Neither this crate nor the protocol crates read a clock, open a socket or file, start a process
//! or read the environment. Their random numbers come from a seed or from the driver. Every event
//! arrives as a value, and every action is returned as a value. The drivers in the crates above
//! carry bytes, time and processes to the machines. The simulator (`rdzv-sim`) is another driver.
//!
//! Reading order: [`machine`] (the contract for all machines), [`time`], [`ident`], [`endpoint`]
//! and [`rank`] (the shared types), [`mod@env`] (names of environment variables) and [`signal`].
//! Then [`escape`] (foreign texts, made safe to display), [`quantity`] (numbers with nouns),
//! [`rate`] (limits on log lines), [`reminder`] (log lines about long waits) and [`rules`] (rules
//! that a simulation can break). The machines themselves are in the protocol crates:
//! `rdzv-store-proto`, `rdzv-rendezvous-proto`, `rdzv-consensus`, `rdzv-voters`,
//! `rdzv-agent-proto` and `rdzv-rpc-proto`.
//!
//! Two checks enforce this separation. The `clippy.toml` of each of these crates forbids clocks,
//! sockets, files, threads, the environment and maps with random order. `cargo xtask tidy` compares
//! the dependencies in the manifests with the table in `ARCHITECTURE.md`.

#![warn(clippy::missing_errors_doc)]

pub mod endpoint;
pub mod env;
pub mod escape;
pub mod ident;
pub mod machine;
pub mod quantity;
pub mod rank;
pub mod rate;
pub mod reminder;
pub mod rules;
pub mod signal;
pub mod time;
