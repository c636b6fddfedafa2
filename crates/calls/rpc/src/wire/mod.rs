//! One connection: frames in, frames out, and the driver that waits for both.
//!
//! A connection has one direction: one side calls, the other answers. Two workers that call each
//! other have two. That takes a descriptor more, and saves what a shared one would bring: two that
//! are opened at once, and a thread that waits for its reply and meets a request instead.
//!
//! | file | contents |
//! |---|---|
//! | [`poller`] | the epoll set of an agent, with all of its connections |
//! | [`link`] | both ends of a connection, and the reason of its end |
//! | [`reader`], [`writer`] | frames in, by the thread that holds the reader lock; frames out, at once or by the driver |
//! | [`handshake`] | the first frames each way |
//! | [`heartbeat`] | whether the other host is there |
//! | [`clock`] | the time of the machines |

pub(crate) mod clock;
pub(crate) mod handshake;
mod heartbeat;
pub(crate) mod link;
pub(crate) mod poller;
pub(crate) mod reader;
#[cfg(test)]
mod tests;
pub(crate) mod writer;
