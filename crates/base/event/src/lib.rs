#![doc = include_str!("../README.md")]
//!
//! Drivers with their own event loop share these primitives; the rendezvous uses tokio.
//!
//! | type | content |
//! |---|---|
//! | [`Waker`] | an eventfd: readable from a wake-up until it is drained |
//! | [`Mailbox`], [`Sender`] | a channel whose receiver polls: a queue and a waker |
//! | [`Poller`] | an epoll instance, which can be polled itself |
//! | [`Timer`] | a timerfd that expires once |
//! | [`poll`], [`is_readable`] | one call of `poll(2)` |
//!
//! This is a thin layer over `rustix`. `mio` is unsuitable for three reasons. `mio` has no one-shot
//! interest. It hides the descriptor of its waker, but rdzv's drivers pass that descriptor to
//! `poll(2)`, to tokio or to another epoll instance. It always registers descriptors
//! edge-triggered. The store server, the workers' connections and the transports each need a
//! feature that is missing there.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "rdzv-event needs Linux (epoll and eventfd): build it for a Linux target, in a container or \
     virtual machine if necessary"
);

mod mailbox;
mod poller;

pub use mailbox::{Mailbox, Sender, Waker, mailbox};
pub use poller::{Event, EventFlags, Poller, Timer, is_readable, poll, timespec};
