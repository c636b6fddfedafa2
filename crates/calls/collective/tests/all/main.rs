//! Process groups in one process. One program, because each is linked with everything.

mod failures;
mod hostile;
mod messages;
mod moving;
mod queue;
mod results;
#[path = "../support/mod.rs"]
mod support;
