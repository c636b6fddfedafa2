//! Remote references to values that stay on the worker that created them.
//!
//! A value lives as long as any worker uses it.
//!
//! The worker that has the value is its **owner**. Every other worker that may use the value holds
//! a **fork**: a share that the owner identifies by a [`ForkId`]. The owner keeps the value while
//! it has an entry for a fork or holds a reference itself. [`References`] is the state machine of
//! one agent. It decides which messages to send, and when to free a value. The driver manages
//! values, calls and bytes.
//!
//! | flow | situation | messages |
//! |---|---|---|
//! | F1 | call on another worker | the call; its answer confirms the fork; [`Control::Completed`] |
//! | F2 | call on the same worker | none |
//! | F3 | owner → user | none: the owner enters the fork before it is sent |
//! | F4 | user → user | [`Control::ForkRequest`], [`Control::ForkAck`], [`Control::ChildAccept`] |
//! | F5 | user → owner | [`Control::ChildAccept`] to the parent |
//! | F6 | owner → itself | none |
//! | F7 | the last handle of a fork is dropped | [`Control::UserDelete`] to the owner |
//! | F8 | a worker requests the value | a call; the owner answers when the value exists |
//! | F9 | a reference is an argument | the function starts when its fork is confirmed |
//!
//! In F1 the owner sends [`Control::Completed`] when the function has returned, if the creator
//! still has its fork. In F4 the receiver sends a request to the owner, and the owner replies. The
//! receiver then notifies the parent, which keeps its own fork until that notification.
//!
//! The messages between two workers are numbered, and resent until they are acknowledged or the
//! receiver is lost ([`reliable`]). Each message is thus delivered exactly once and in order to a
//! receiver that is not lost. Calls, their results and the forks inside them can be lost. The
//! member that created a fork therefore asks a silent receiver about it ([`Control::ForkAsk`]). A
//! receiver that does not have the fork rejects it for the next [`Settings::refuse_for`].
//!
//! A worker is **lost** if it is unreachable for longer than the limit, has left, has restarted, or
//! regards this worker as lost. Its forks are released, and references to its values fail. A member
//! that holds a fork or a value has a lease: other members probe it after a long silence
//! ([`Control::Probe`]). A worker that was wrongly regarded as lost is notified. A worker that
//! restarts becomes a new [`Member`], and none of its earlier state is valid.
//!
//! **INV-P2**: a value is not freed before its last user has released it or is lost, unless its
//! owner ends. Once no handles are live, all values and forks are eventually freed.
//!
//! | file | content |
//! |---|---|
//! | [`ident`] | members, ids, references in flight |
//! | [`message`] | control messages and batches |
//! | [`io`] | inputs, outputs, settings and errors of [`References`] |
//! | [`reliable`] | the numbered messages to and from one member |
//! | `references` | the state machine: its state, timers and dispatch |
//! | `references/owner` | values of this member |
//! | `references/user` | forks of this member |
//! | `references/child` | forks in flight |
//! | `references/shutdown` | lost members, shutdown, leaks |

pub mod ident;
pub mod io;
pub mod message;
mod references;
pub mod reliable;

#[cfg(test)]
mod tests;

pub use ident::{FetchId, ForkData, ForkId, GlobalId, Handle, Member, RRefId};
pub use io::{Adopted, Counters, Fetch, Input, Leak, Output, ReferenceFailure, Settings, UserInfo};
pub use message::{Batch, Control};
pub use references::References;
