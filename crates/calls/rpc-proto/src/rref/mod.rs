//! Remote references: values that stay where they were made, and are kept alive from afar.
//!
//! A value lives on its **owner**. Every other worker that may use it holds a **fork**: a share
//! that the owner knows by a [`ForkId`]. The owner keeps the value as long as it has a fork in its
//! books or holds the value itself. [`References`] is the machine of one agent; it decides what is
//! said to whom and when a value may go. Values, calls and bytes belong to the driver.
//!
//! | flow | situation | what is said |
//! |---|---|---|
//! | F1 | made by a call on another worker | the call; its answer confirms the fork; [`Control::Completed`] when the function has ended |
//! | F2 | the same on oneself | nothing |
//! | F3 | owner → user | nothing: the owner enters the fork before it is sent |
//! | F4 | user → user | [`Control::ForkRequest`] to the owner, [`Control::ForkAck`] back, [`Control::ChildAccept`] to the parent, which holds on until then |
//! | F5 | user → owner | [`Control::ChildAccept`] to the parent |
//! | F6 | owner → itself | nothing |
//! | F7 | the last handle of a fork is dropped | [`Control::UserDelete`] to the owner |
//! | F8 | the value is asked for | a call; the owner answers when the value exists |
//! | F9 | a reference is an argument | the function starts when its fork is confirmed |
//!
//! The messages between two workers are numbered, acknowledged and sent again until they are
//! ([`reliable`]), so each is seen exactly once and in order, whatever the network does. What may
//! be lost is a *call* and the forks inside of it. Whoever made a fork therefore asks its receiver
//! about it when it stays silent ([`Control::ForkAsk`]); a receiver that does not have it refuses
//! it from then on, should it still come.
//!
//! A worker that is unreachable longer than the grace period, or has left, is **lost**: its forks
//! are released, and references to its values fail. Whoever holds a fork, or a value, has a lease:
//! if it is silent for long it is asked whether it is there ([`Control::Probe`]). A worker that was
//! lost wrongly is told so. A worker that starts again is another [`Member`], and nothing of its
//! former life is valid.
//!
//! **INV-P2**: a value is not freed before the last user of it is gone. Without live handles,
//! everything drains to nothing.
//!
//! | file | what |
//! |---|---|
//! | [`ident`] | members, ids, what travels |
//! | [`message`] | control messages and batches |
//! | [`io`] | inputs, outputs, settings and errors of the machine |
//! | [`reliable`] | the numbered messages to and from one member |
//! | `references` | the machine; below it `owner` (values here), `user` (forks here), `child` (forks in flight), `shutdown` (lost members, shutdown, leaks) |

pub mod ident;
pub mod io;
pub mod message;
mod references;
pub mod reliable;

#[cfg(test)]
mod tests;

pub use ident::{FetchId, ForkData, ForkId, GlobalId, Handle, Member, RRefId};
pub use io::{Adopted, Counters, Failure, Fetch, Input, Leak, Output, Settings, UserInfo};
pub use message::{Batch, Control};
pub use references::References;
