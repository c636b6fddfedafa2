//! Remote calls between workers: frames, calls, references, device maps.
//!
//! This crate opens no connection and runs no function. The crate `rdzv-rpc` transports the bytes,
//! and asks these modules what the bytes mean and what to do.
//!
//! Reading order:
//!
//! - [`worker`]: names and ids of workers,
//! - [`frame`]: the bytes that workers send to each other,
//! - [`calls`]: calls that wait for their end, and limits on their number,
//! - [`heartbeat`]: detection of a lost host,
//! - [`device`]: locations of tensors, and maps between the devices of two workers,
//! - [`directory`]: members of the group,
//! - [`tensor`]: tensors without their memory, and which of their bytes to send,
//! - [`rref`]: references to values on other workers,
//! - [`gather`]: values of all members for all members.
//!
//! The API of this crate follows the releases of `rdzv-rpc`.

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
