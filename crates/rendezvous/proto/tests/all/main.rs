//! Tests of the native protocol, in one program to save link time.

mod native_client;
mod native_wire;
