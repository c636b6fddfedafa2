//! The keeper: the outermost process of a launch.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command, ExitStatus};

use std::time::Duration;

use rdzv_core::env::RDZV_CALLER;
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

/// Time for an agent without a guard to end by itself: its own last resort included.
const AGENT_CLEARS_WITHIN: Duration = LAST_RESORT_AFTER.saturating_mul(2);

/// The end of an agent.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct AgentEnd {
    /// Its wait status, for [`end_like`].
    pub status: ExitStatus,
    /// Its process id; unknown if the guard between keeper and agent was killed.
    pub pid: Option<u32>,
}

/// Starts the agent and waits for its end; then kills and collects whatever is left of the run.
///
/// `agent` is this program again, with the same arguments; in it [`is_kept`] is true. Has to be
/// called on the main thread, before there is another one.
///
/// If `RDZV_CALLER` names a process, that is the parent of this one, and the run does not outlive
/// it.
///
/// [`is_kept`]: super::is_kept
pub fn keep(agent: Command) -> Result<AgentEnd, AgentError> {
    end_with_caller().map_err(system("end with the caller of the launcher"))?;
    keep_descriptors_private().map_err(system("look at inherited descriptors"))?;
    let pid = getpid();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(system("watch the keeper"))?;
    let (report, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system("start the guard"))?;
    // None is lost: each of the two unblocks them when it handles them.
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
                // It may have started the agent before that.
                attendant.clear(ControlGroup::of_launcher(pid)).await;
                Err(system("guard the agent")(io::Error::other(text)))
            }
            Some(Report::Started(_)) | None => {
                // The guard was killed, so everything below it has come to us. An agent that is
                // alive notices, and clears what is below it. It has time for that: if it were
                // killed first, and this process next, nobody would be left.
                if let Some(agent) = agent {
                    let _ = timeout(AGENT_CLEARS_WITHIN, attendant.ended(agent)).await;
                }
                attendant.clear(ControlGroup::of_launcher(pid)).await;
                Ok(AgentEnd { status, pid: None })
            }
        }
    })
}

/// Has the kernel kill this process when its caller ends, if it has one; guard and agent then clear the rest, as
/// after every other death of the keeper.
fn end_with_caller() -> io::Result<()> {
    let Some(caller) = env::var(RDZV_CALLER).ok() else {
        return Ok(());
    };
    let caller = caller.parse().ok().and_then(Pid::from_raw);
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before the line above.
    if caller.is_none() || getppid() != caller {
        return Err(io::Error::other(format!(
            "{RDZV_CALLER} is not the parent of this process"
        )));
    }
    Ok(())
}

/// Ends this process as another one ended: with the same code, or by the same signal.
pub fn end_like(status: ExitStatus) -> ! {
    let Some(number) = status.signal() else {
        process::exit(status.code().unwrap_or(1));
    };
    // The agent has left its core dump; one of the keeper would be useless.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    if let Some(signal) = Signal::from_named_raw(number) {
        let _ = kill_process(getpid(), signal);
    }
    // Still here: the signal has a handler, which only a new program image takes away.
    // The first process of a container does not die of its own signals; then the code has to do.
    let script = "kill -\"$1\" $$; exit $((128 + $1))";
    let error = Command::new("/bin/sh")
        .args(["-c", script, "sh", &number.to_string()])
        .exec();
    tracing::debug!("die of signal {number}: {error}");
    process::exit(128 + number);
}
