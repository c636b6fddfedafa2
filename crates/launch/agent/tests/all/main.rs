//! The agent, run by the program `agent_harness`. One program, because each is linked with everything.

mod console;
mod control_group;
mod elastic;
#[path = "../harness/mod.rs"]
mod harness;
mod job_control;
mod keeper;
mod kills;
mod processes;
mod static_rendezvous;
