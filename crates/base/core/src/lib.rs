//! The kernel of rdzv: the contract of its machines, and the words that they share.
//!
//! Nothing in this crate, nor in the crates beside it, reads a clock, opens a socket or a file,
//! starts a process, looks at the environment or draws a random number. Everything that happens
//! comes in as a value, everything that should be done goes out as a value. The drivers in the
//! crates above carry bytes, time and processes to the machines; the simulator (`rdzv-sim`) is one
//! more driver.
//!
//! Reading order: [`machine`] (the one contract all machines share), [`time`], [`ident`],
//! [`endpoint`] and [`rank`] (the words), [`mod@env`] (names of environment variables), [`signal`],
//! [`escape`] (texts of others, fit to be shown), [`rate`] (bounds on log lines).
//! The machines themselves are in the protocol crates: `rdzv-store-proto`, `rdzv-rendezvous-proto`,
//! `rdzv-agent-proto` and `rdzv-rpc-proto`.
//!
//! The fence around these crates is `crates/base/core/clippy.toml`, which forbids clocks, sockets,
//! files, threads, the environment and randomly ordered maps, and a short list of dependencies that
//! `cargo xtask tidy` compares with the manifests.

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
