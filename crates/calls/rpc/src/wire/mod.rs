//! One connection: frames in, frames out, and the driver that waits for both.
//!
//! A connection has one direction: one side calls, the other answers. Two workers that call each
//! other have two connections. This costs more descriptors. In exchange, two workers never open
//! the same connection at the same time, and a thread that waits for a reply never meets a request.
//!
//! | file | contents |
//! |---|---|
//! | [`poller`] | the epoll set of an agent, with all of its connections |
//! | [`link`] | both ends of a connection, and the reason of its end |
//! | [`reader`], [`writer`] | frames in, read by the holder of the reader lock; frames out |
//! | [`handshake`] | the first frames each way |
//! | [`heartbeat`] | detection of a lost host |
//! | [`clock`] | the clock of the state machines |

pub(crate) mod clock;
pub(crate) mod handshake;
mod heartbeat;
pub(crate) mod link;
pub(crate) mod poller;
pub(crate) mod reader;
#[cfg(test)]
mod tests;
pub(crate) mod writer;
