//! Remote references: values that stay on their owner and that others can use.
//!
//! ```text
//!   RRef<T> ──► Held ──► Register ──► core::rpc::rref::References    decides what to send
//!                            │
//!                            └──► values, waiters                    receive the results
//! ```
//!
//! An [`RRef`] is a handle of a value on its owner; on the owner it leads to the value itself.
//! Clones on one worker share one fork; dropping the last clone gives the fork back. A reference
//! can be part of the argument or the result of any call, and cannot be serialised elsewhere. With
//! [`RpcAgent::remote`], another worker creates a value. A [`ValueMethod`] runs on the owner of the
//! value, in one round trip.
//!
//! The state machine in [`rdzv_rpc_proto::rref`] makes all decisions. References in a call are
//! handled while the call is encoded and decoded (`register::travel`). A function with references
//! in its argument starts when the owners have confirmed them.
//!
//! | file | content |
//! |---|---|
//! | `register` | the state machine of an agent under its lock, values, and waiters |
//! | `reference` | [`RRef`], the public handle |
//! | `kept` | values that functions have created, and their encoders |
//! | `register::travel` | references in messages |
//! | `question` | requests for values |
//! | `create` | values that other workers create |
//! | `value_method` | methods of values |
//! | `failure` | failures of the machine as errors of calls |
//!
//! [`RpcAgent::remote`]: crate::RpcAgent::remote

mod create;
mod failure;
mod kept;
mod question;
mod reference;
mod register;
mod value_method;

#[cfg(test)]
mod tests;

pub use rdzv_rpc_proto::rref::{Counters as ReferenceCounters, Settings as ReferenceSettings};
pub use reference::RRef;
pub use value_method::ValueMethod;

pub(crate) use create::offered;
pub(crate) use kept::{Keep, Kept};
pub(crate) use question::{value, wait_for_value};
pub(crate) use register::Register;
