//! Processes, console and machine of a launcher such as the program `rdzv`.
//!
//! [`keep`] runs the processes around the agent: they clean up everything that the agent started,
//! even if the agent is killed. [`run_in_view`] is [`run`](crate::run()) with the live view of a
//! terminal.
//!
//! This module follows no semver promise: it changes with the program. A program that only runs an
//! agent needs [`keep`], [`is_kept`] and [`end_like`]; the example `function_workers` shows them.

pub use crate::error_file::{write_launcher_error_file, write_refusal_to_error_file};
pub use crate::keeper::{
    AgentEnd, RestartReason, Service, end_like, is_kept, keep, keep_service, kept, launcher_pid,
};
pub use crate::logs::{LiveView, ViewOptions, write_own_lines, write_own_output};
pub use crate::output_relay::OutputRelay;
pub use crate::preview::{WorkerPreview, preview};
pub use crate::rendezvous::exchange_ranks;
pub use crate::run::run_in_view;
pub use crate::signals::when_signalled;

/// Facts about this host.
pub mod host {
    pub use crate::host::*;
}

/// Choice of the Python interpreter that runs a script.
pub mod python {
    pub use crate::python::*;
}

/// Processors and devices of this machine, and their assignment to workers.
pub mod topology {
    pub use crate::topology::*;
}
