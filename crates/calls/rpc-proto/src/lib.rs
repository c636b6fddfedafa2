#![doc = include_str!("../README.md")]
//!
//! This crate opens no connections and runs no functions. The crate `rdzv-rpc` transports the
//! bytes, and uses this crate to interpret them and to decide what to do.
//!
//! Reading order:
//!
//! - [`worker`]: names and ids of workers,
//! - [`frame`]: encoding of the messages between workers,
//! - [`calls`]: pending calls, and limits on their number,
//! - [`heartbeat`]: detection of lost hosts,
//! - [`device`]: devices that hold tensors, and maps between the devices of two workers,
//! - [`directory`]: members of the group,
//! - [`tensor`]: metadata of tensors, and the choice of the bytes to send,
//! - [`rref`]: references to values on other workers,
//! - [`gather`]: exchange of values among all members.

pub mod calls;
pub mod device;
pub mod directory;
pub mod error;
pub mod frame;
pub mod gather;
pub mod heartbeat;
pub mod rref;
pub mod tensor;
pub mod worker;
