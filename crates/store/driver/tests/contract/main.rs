//! Tests of the contract of `dyn Store`, run against every store.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod basics;
mod queues;
mod stores;
mod waiting;

use std::time::Duration;

/// Time far beyond that of any test; only a defect makes a test wait for it.
const LONG: Duration = Duration::from_secs(30);

/// Time of a wait that is meant to end without success.
const SHORT: Duration = Duration::from_millis(60);

/// Runs every named behaviour against every kind of store.
macro_rules! behaviours {
    ($module:ident: $($behaviour:ident),* $(,)?) => {
        mod hash { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::stores::Hash::default());
        })* }
        mod file { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::stores::File::default());
        })* }
        mod tcp { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::stores::Tcp::default());
        })* }
        mod prefix_over_hash { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::stores::Prefixed::<crate::stores::Hash>::default());
        })* }
        mod prefix_over_file { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::stores::Prefixed::<crate::stores::File>::default());
        })* }
        mod prefix_over_tcp { $(#[test] fn $behaviour() {
            super::$behaviour(&crate::stores::Prefixed::<crate::stores::Tcp>::default());
        })* }
    };
}
pub(crate) use behaviours;
