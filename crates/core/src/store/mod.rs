//! The stores: keys, values, waiters, and the c10d wire.
//!
//! | module | what |
//! |---|---|
//! | [`limits`] | how much a server accepts |
//! | [`meter`] | counting the memory of large values |
//! | [`wire`] | requests and replies as bytes, both directions |
//! | [`client`] | machine: one connection of a client |
//! | [`number`] | decimal numbers as values |
//! | [`prefix`] | the rules of key prefixes |
//! | [`journal`] | the record format of the file store |

pub mod client;
pub mod journal;
pub mod limits;
pub mod meter;
pub mod number;
pub mod prefix;
pub mod wire;
