//! One contract, run against every dynamic rendezvous: what agents may rely on.
//!
//! To have a backend of one's own tested, add it to `places.rs` and to the macro below.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod changes;
mod endings;
mod forming;
mod nodes;
mod places;

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
    };
}
pub(crate) use behaviours;
