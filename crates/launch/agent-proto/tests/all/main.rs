//! Tests of the machines of the agent. They are one program to save link time.

mod hang_bytes;
mod placement;
