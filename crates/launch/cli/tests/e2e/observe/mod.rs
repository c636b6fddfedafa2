//! What can be seen of a run from outside while it goes on, and of its events afterwards.

mod events;
pub(crate) mod server;
