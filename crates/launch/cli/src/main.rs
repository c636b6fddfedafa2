//! The `rdzv` program: `rdzv run` and the other commands.
//!
//! Through a link named `torchrun`, the program behaves as `torchrun`.
//!
//! ```text
//! argv, PET_* ─ args ─► RunArgs ─ launch ─► AgentConfig ─ rdzv-agent ─► Outcome ─ report ─► code
//!                                                            │
//!                                                            └─ events ─► observe
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!(
    "rdzv needs Linux (subreapers, inotify and /proc): build it for a Linux target, in a container \
     or virtual machine if necessary"
);

mod args;
mod commands;
mod demo;
mod exit;
mod explanation;
mod face;
mod launch;
mod number;
mod observe;
mod report;
mod scheduler;
mod suggestion;
mod terminal;
mod trust;
mod views;

use std::process::ExitCode;

use args::Program;

fn main() -> ExitCode {
    if let Err(error) = trust::hide_variable() {
        terminal::complain(&format!(
            "rdzv: cannot write the job token to a file: {error}"
        ));
        return exit::Exit::Failure.into();
    }
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_else(|| "rdzv".into());
    match Program::of(&called, words.collect()) {
        Program::Launch(launcher, words) if rdzv_agent::launcher::is_kept() => {
            commands::agent(launcher, &called, &words)
        }
        Program::Launch(..) => commands::keep(&called),
        Program::Own(words) => {
            let code = commands::run(&words);
            trust::remove_copy();
            code
        }
    }
}
