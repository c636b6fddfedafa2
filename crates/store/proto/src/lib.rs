#![doc = include_str!("../README.md")]
//!
//! | module | content |
//! |---|---|
//! | [`keyspace`] | keys and queues, and the memory that they occupy |
//! | [`waiters`] | waits for keys |
//! | [`ops`] | the effect of each operation, and the waiters that it wakes |
//! | [`server`] | the server machine: many connections, one store |
//! | [`limits`] | the bounds of a server and of a client |
//! | [`meter`] | counting memory and keys per owner |
//! | [`wire`] | requests and replies as bytes, both directions |
//! | [`client`] | the client machine: one connection |
//! | [`number`] | decimal numbers as values |
//! | [`prefix`] | the rules of key prefixes |
//! | [`journal`] | the record format of the file store |
//!
//! The crate `rdzv-store` drives these machines.

pub mod client;
pub mod journal;
pub mod keyspace;
pub mod limits;
pub mod meter;
pub mod number;
pub mod ops;
pub mod prefix;
pub mod server;
pub mod waiters;
pub mod wire;
