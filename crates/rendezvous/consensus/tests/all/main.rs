//! The machine alone, its frames, and the decisions about members.

#![expect(clippy::unwrap_used, reason = "what is not there fails the test")]

mod group;
mod membership;
mod split_votes;
mod wire;
