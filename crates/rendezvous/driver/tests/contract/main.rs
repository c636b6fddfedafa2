//! Contract of every dynamic rendezvous: the guarantees for agents.
//!
//! To test another backend, add it to `backends.rs` and to the macro below. A plain `cargo test`
//! ignores the backends that need a server's program; `cargo xtask test` runs them all.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod backends;
mod changes;
mod endings;
mod forming;
mod nodes;
#[path = "../etcd/server.rs"]
#[allow(dead_code, reason = "some of it is for other tests")]
mod server;
#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../support/mod.rs"]
mod support;

/// Runs every listed behaviour against every backend.
macro_rules! behaviours {
    ($($behaviour:ident),* $(,)?) => {
        /// A store server that no node hosts, without a rendezvous of rdzv.
        mod c10d_over_plain_store { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::backends::PlainStore::default());
        })* }
        mod c10d_over_file { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::backends::File::default());
        })* }
        mod c10d_hosted_by_a_node { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::backends::Hosted::default());
        })* }
        mod etcd { $(#[test] #[ignore = "needs an etcd server"] fn $behaviour() {
            super::$behaviour(&crate::backends::Etcd::default());
        })* }
    };
}
pub(crate) use behaviours;
