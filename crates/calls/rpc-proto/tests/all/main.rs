//! Tests of the formats and rules of RPC.
//!
//! They are one program, because linking each test program takes long.

mod device_rules;
mod rpc_frame;
