//! Tests of the agent's state machines, in one program to save link time.

mod hang_bytes;
mod placement;
