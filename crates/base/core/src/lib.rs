//! The kernel of rdzv: the contract of its machines, and shared types.
//!
//! Nothing in this crate, nor in the crates beside it, reads a clock, opens a socket or a file,
//! starts a process, reads the environment or draws a random number. Every event comes in as a
//! value, and every action goes out as a value. The drivers in the crates above carry bytes, time
//! and processes to the machines. The simulator (`rdzv-sim`) is one more driver.
//!
//! Reading order: [`machine`] (the contract of all machines), [`time`], [`ident`], [`endpoint`] and
//! [`rank`] (the shared types), [`mod@env`] (names of environment variables), [`signal`],
//! [`escape`] (foreign texts, made safe to display), [`rate`] (bounds on log lines). The machines
//! themselves are in the protocol crates: `rdzv-store-proto`, `rdzv-rendezvous-proto`,
//! `rdzv-agent-proto` and `rdzv-rpc-proto`.
//!
//! Two checks enforce this. `crates/base/core/clippy.toml` forbids clocks, sockets, files, threads,
//! the environment and randomly ordered maps. `cargo xtask tidy` compares the dependencies in the
//! manifests with a short list.

pub mod endpoint;
pub mod env;
pub mod escape;
pub mod ident;
pub mod machine;
pub mod rank;
pub mod rate;
pub mod reminder;
pub mod rules;
pub mod signal;
pub mod time;
