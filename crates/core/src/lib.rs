//! The pure core of rdzv: decisions and formats, and nothing that touches the world.
//!
//! Nothing in this crate reads a clock, opens a socket or a file, starts a process, looks at the
//! environment or draws a random number. Everything that happens comes in as a value, everything
//! that should be done goes out as a value. The shells in the crates above carry bytes, time and
//! processes to the machines here; the simulator (`rdzv-sim`) is one more shell.
//!
//! Reading order: [`machine`] (the one contract all machines share), [`time`], [`ident`] and
//! [`rank`] (the words), then the machines themselves: [`store`] (keys, values, waiters, the wire),
//! [`rendezvous`] (who takes part, at which rank; [`pickle`] is how Python writes that down) and
//! [`group`] (the workers of one agent: join, start, watch, restart, finish). Beside them stands
//! [`topology`]: which processors and devices a worker gets, and [`rpc`]: calls between workers.
//!
//! The fence around this crate is its own `clippy.toml`, which forbids clocks, sockets, files,
//! threads, the environment and randomly ordered maps, and a short list of dependencies that
//! `cargo xtask tidy` compares with the manifest.

pub mod endpoint;
pub mod env;
pub mod group;
pub mod hang;
pub mod ident;
pub mod machine;
pub mod pickle;
pub mod rank;
pub mod rendezvous;
pub mod rpc;
pub mod signal;
pub mod store;
pub mod time;
pub mod topology;
