//! Remote references: handles to values that stay on their owner.
//!
//! ```text
//!   RRef<T> ──► Held ──► Register ──► rdzv_rpc_proto::rref::References    decides what to send
//!                            │
//!                            └──► values, waiters                         receive the results
//! ```
//!
//! An [`RRef`] is a handle to a value on its owner; on the owner, it gives access to the value
//! itself. On other workers, all clones of a handle share one fork, and dropping the last clone
//! releases the fork. A reference can be part of the argument or the result of any call; it cannot
//! be serialised elsewhere. [`RpcAgent::remote`] creates a value on any worker. A [`ValueMethod`]
//! runs on the owner of the value, in one round trip.
//!
//! The state machine in [`rdzv_rpc_proto::rref`] makes all decisions. References in a call are
//! forked and adopted while the call is encoded and decoded (`register::travel`). A function with
//! references in its argument starts once the owners have confirmed them.
//!
//! | file | contents |
//! |---|---|
//! | `register` | the state machine of an agent under its lock, values, and waiters |
//! | `reference` | [`RRef`], the public handle |
//! | `kept` | values that an agent keeps, and their encoders |
//! | `register::travel` | references in messages |
//! | `question` | requests for values |
//! | `create` | values that a call creates |
//! | `value_method` | methods that run on values |
//! | `failure` | conversion of failures to errors |
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
