//! The machines of the agent. One program, because each is linked with everything.

mod hang_bytes;
mod placement;
