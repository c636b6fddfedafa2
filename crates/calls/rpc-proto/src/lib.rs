//! Remote calls between workers: names, frames, calls, remote references, device maps.
//!
//! Nothing here opens a connection or runs a function. The crate `rdzv-rpc` carries the bytes, and
//! asks these modules what they mean and what to do.
//!
//! Reading order:
//! [`worker`] (who can be called),
//! [`frame`] (what workers send each other, as bytes),
//! [`calls`] (calls that wait for their end, and how many may),
//! [`heartbeat`] (whether the host at the other end is there),
//! [`device`] (where tensors are, and which device of one worker is which of another),
//! [`directory`] (who is in the group),
//! [`tensor`] (what tensors are without their memory, and which of their bytes to send),
//! [`rref`] (values that are referred to from afar),
//! [`gather`] (values of all members for all).
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
