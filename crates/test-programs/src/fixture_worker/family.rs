//! Steps that start other processes.

use std::env;
use std::io;
use std::process::{Child, Command};

use rustix::process::setsid;

/// Executes a step of this family; `None` if the name belongs to another one.
pub(crate) fn step(name: &str, value: &str, _rest: &[String]) -> Option<io::Result<()>> {
    Some(match name {
        "child" => start(value, false).map(drop),
        "child-in-session" => start(value, true).map(drop),
        "orphan" => orphan(value),
        "as-session-leader" => setsid().map(drop).map_err(io::Error::from),
        _ => return None,
    })
}

fn start(steps: &str, own_session: bool) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    if own_session {
        command.arg("as-session-leader");
    }
    command.args(steps.split(';')).spawn()
}

fn orphan(steps: &str) -> io::Result<()> {
    let mut between = Command::new(env::current_exe()?);
    let status = between.arg(format!("child-in-session:{steps}")).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other("the process in between failed"))
    }
}
