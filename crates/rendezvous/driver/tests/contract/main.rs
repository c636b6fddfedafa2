//! One contract, run against every dynamic rendezvous: what agents may rely on.
//!
//! To have a backend of one's own tested, add it to `places.rs` and to the macro below. Those that
//! need a server's program are ignored by a plain `cargo test`; `cargo xtask test` runs them all.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod changes;
mod endings;
mod forming;
mod nodes;
mod places;
#[path = "../etcd/server.rs"]
#[allow(dead_code, reason = "some of it is for other tests")]
mod server;
#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../support/mod.rs"]
mod support;

/// Runs every behaviour that is named against every backend.
macro_rules! behaviours {
    ($($behaviour:ident),* $(,)?) => {
        /// A store of somebody else, without anything of ours in it.
        mod c10d_over_plain_store { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::places::PlainStore::default());
        })* }
        mod c10d_over_file { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::places::File::default());
        })* }
        mod c10d_hosted_by_a_node { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::places::Hosted::default());
        })* }
        mod etcd { $(#[test] #[ignore = "needs an etcd server"] fn $behaviour() {
            super::$behaviour(&crate::places::Etcd::default());
        })* }
    };
}
pub(crate) use behaviours;
