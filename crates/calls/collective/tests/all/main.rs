//! Tests of process groups in one process.
//!
//! They are one program, because linking each test program takes long.

mod failures;
mod hostile;
mod messages;
mod moving;
mod queue;
mod results;
#[path = "../support/mod.rs"]
mod support;
