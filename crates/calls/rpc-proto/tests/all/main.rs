//! The formats and rules of RPC. One program, because each is linked with everything.

mod device_rules;
mod rpc_frame;
