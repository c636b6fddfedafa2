//! The stores: keys, values, waiters, and the c10d wire.

pub mod journal;
pub mod number;
pub mod prefix;
