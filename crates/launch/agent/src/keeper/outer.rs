//! Keeper: the outermost process of a launch.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command, ExitStatus};

use std::time::Duration;

use rdzv_core::env::RDZV_CALLER;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getpid, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal, setrlimit,
};

use tokio::time::timeout;

use super::LAST_RESORT_AFTER;
use super::child::{Attendant, adopt_orphans, block_signals, event_loop};
use super::guard::{self, Keeper, Report};
use crate::AgentError;
use crate::control_group::ControlGroup;
use crate::error::system;
use crate::spawn::{fork, keep_descriptors_private};

/// Time for an agent without a guard to exit, including its own last resort.
const AGENT_CLEARS_WITHIN: Duration = LAST_RESORT_AFTER.saturating_mul(2);

/// Exit of an agent.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct AgentEnd {
    /// Wait status of the agent, or of a guard that was killed, for [`end_like`].
    pub status: ExitStatus,
    /// Process id of the agent.
    /// `None` if the guard between keeper and agent was killed.
    pub pid: Option<u32>,
}

/// Starts the agent, waits for its exit, and kills what is left of the run.
///
/// `agent` is this program with the same arguments; [`is_kept`] is true in it. Must be called on
/// the main thread, before any other thread exists.
///
/// `RDZV_CALLER` may name a process. That process must be the parent of this one, and the run does
/// not outlive it.
///
/// # Errors
///
/// [`AgentError`] if the guard or the agent cannot be started, or the caller is not the parent.
///
/// [`is_kept`]: super::is_kept
pub fn keep(agent: Command) -> Result<AgentEnd, AgentError> {
    end_with_caller().map_err(system("exit with the caller of the launcher"))?;
    keep_descriptors_private().map_err(system("check inherited descriptors"))?;
    let pid = getpid();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
        Errno::NOSYS | Errno::PERM => AgentError::NoPidfd(error.into()),
        _ => system("watch the keeper")(error),
    })?;
    let (report, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system("start the guard"))?;
    // No signal is lost: keeper and guard each unblock signals once they handle them.
    block_signals()?;
    let Some(guard) = fork().map_err(system("start the guard"))? else {
        drop(report);
        guard::run(agent, &Keeper { pid, pidfd }, writer);
    };
    drop(writer);
    event_loop()?.block_on(async {
        let mut attendant = Attendant::new(adopt_orphans()?, true, None)?;
        let status = attendant.ended(guard).await?;
        let mut bytes = Vec::new();
        File::from(report)
            .read_to_end(&mut bytes)
            .map_err(system("wait for the guard"))?;
        let (agent, report) = Report::decode(&bytes);
        match report {
            Some(Report::Ended { status, pid }) => Ok(AgentEnd {
                status: ExitStatus::from_raw(status),
                pid: Some(pid),
            }),
            Some(Report::Failed(text)) => {
                // The guard may have started the agent before that.
                attendant.clear(ControlGroup::of_launcher(pid)).await;
                Err(system("guard the agent")(io::Error::other(text)))
            }
            Some(Report::Started(_)) | None => {
                // The guard was killed, so everything below it became a child of this process. A
                // live agent notices this and clears its descendants. It gets time for that: if we
                // killed it first, and another kill hit this process next, no process would be left
                // to clear the rest.
                if let Some(agent) = agent {
                    let _ = timeout(AGENT_CLEARS_WITHIN, attendant.ended(agent)).await;
                }
                attendant.clear(ControlGroup::of_launcher(pid)).await;
                Ok(AgentEnd { status, pid: None })
            }
        }
    })
}

/// Asks the kernel to kill this process when its caller exits, if it has one.
/// Guard and agent then clear the rest, as after every other death of the keeper.
fn end_with_caller() -> io::Result<()> {
    let Some(caller) = env::var(RDZV_CALLER).ok() else {
        return Ok(());
    };
    let caller = caller.parse().ok().and_then(Pid::from_raw);
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The caller may have exited before the line above.
    if caller.is_none() || getppid() != caller {
        return Err(io::Error::other(format!(
            "{RDZV_CALLER} is not the parent of this process"
        )));
    }
    Ok(())
}

/// Exits as another process did: with the same code or signal.
pub fn end_like(status: ExitStatus) -> ! {
    let Some(number) = status.signal() else {
        process::exit(status.code().unwrap_or(1));
    };
    // The agent has left its core dump; a core dump of the keeper would be useless.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    if let Some(signal) = Signal::from_named_raw(number) {
        let _ = kill_process(getpid(), signal);
    }
    // The signal has a handler, which only a new program image removes. The first process of a
    // container does not die of signals that it sends itself; it must exit with the code instead.
    let script = "kill -\"$1\" $$; exit $((128 + $1))";
    let error = Command::new("/bin/sh")
        .args(["-c", script, "sh", &number.to_string()])
        .exec();
    tracing::debug!("cannot exit by signal {number}: {error}");
    process::exit(128 + number);
}
