//! One connection between two workers, in one direction: one side calls, the other answers.
//!
//! ```text
//!   caller ── requests, cancels, references, releases ──► callee
//!   caller ◄─────────── replies, errors, releases ──────── callee
//! ```
//!
//! Two workers that call each other have two connections. That takes a descriptor more, and saves
//! what a shared one would bring: two that are opened at once, and a thread that waits for its reply
//! and meets a request instead.
//!
//! | file | what |
//! |---|---|
//! | [`writer`] | frames out: at once if there is room, else by the driver |
//! | [`reader`] | frames in, by whoever holds the *helm* |
//! | [`link`] | both, and what ends them |
//! | [`heart`] | whether the other host is there |
//! | [`request`] | a call before it is sent |
//! | [`calls`] | calls that are not answered yet, and those that wait for room |
//! | [`client`] | the calling side: calls that wait for their reply |
//! | [`waiting`] | a thread that waits for a reply reads the connection itself |
//! | [`server`] | the answering side: from a request to its reply |
//! | [`lent`] | parts that the other process reads out of our memory |
//! | [`arenas`] | parts that the other process uses where they are |
//! | [`greeting`] | the first frame each way |

pub(crate) mod arenas;
mod calls;
pub(crate) mod client;
pub(crate) mod greeting;
mod heart;
pub(crate) mod lent;
pub(crate) mod link;
pub(crate) mod reader;
pub(crate) mod request;
pub(crate) mod server;
#[cfg(test)]
mod tests;
pub(crate) mod waiting;
pub(crate) mod writer;
