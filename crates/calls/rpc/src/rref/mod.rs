//! Remote references: values that stay on the worker that made them, and can be used from others.
//!
//! ```text
//!   RRef<T> ──► Held ──► Register ──► core::rpc::rref::References    who has to be told what
//!                            │
//!                            └──► values, waiters                    what is told about
//! ```
//!
//! An [`RRef`] is a handle of a value on its owner; on the owner it leads to the value itself.
//! Clones on one worker share one fork; the last one that is dropped gives it back. A reference can
//! be part of the argument or the result of any call, and nowhere else be serialised.
//! [`RpcAgent::remote`] lets another worker make a value; a [`ValueMethod`] is called on the value,
//! wherever that is, in one round trip.
//!
//! All decisions are those of the machine in [`rdzv_rpc_proto::rref`]. What a call carries is dealt
//! with as it is encoded and decoded (`register::travel`); a function with references in its
//! argument starts when their owners know of them.
//!
//! | file | what |
//! |---|---|
//! | `register` | the machine of an agent under its lock, values, and who waits for what |
//! | `reference` | [`RRef`]: what users have |
//! | `kept` | values that functions have made, and how they are sent |
//! | `register::travel` | references in messages |
//! | `question` | questions for values |
//! | `create` | values that are made elsewhere |
//! | `value_method` | methods of values |
//! | `failure` | what the failures of the machine are called |
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
