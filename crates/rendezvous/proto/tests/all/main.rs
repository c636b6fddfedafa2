//! The native protocol. One program, because each is linked with everything.

mod native_client;
mod native_wire;
