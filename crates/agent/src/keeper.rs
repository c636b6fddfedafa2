//! The keeper: the supervisor process around the agent, and the agent's watch on it.
//!
//! | who is killed (SIGKILL) | what happens |
//! |---|---|
//! | the agent | its workers die with it (parent-death signal); whatever they had started comes to the keeper, which kills it |
//! | the keeper | the agent notices at once, stops its workers with a very short grace, kills the rest; if its thread is held up, another one does |
//!
//! The agent has a session of its own. Therefore a signal from the terminal, or to the process group,
//! reaches the keeper alone, which forwards it: exactly once, and also where only one process was
//! meant. [`signals`](crate::signals) describes Ctrl-Z.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use rdzv_core::env::RDZV_KEEPER;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid,
    kill_process, pidfd_open, set_parent_process_death_signal, setrlimit, waitid, waitpid,
};
use std::collections::HashSet;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, timeout_at};

use crate::AgentError;
use crate::control_group::ControlGroup;
use crate::exits::awaitable;
use crate::reap::Leftovers;
use crate::signals::{JobControl, JobRequest, Signals, stop_this_process};
use crate::spawn::{detach, keep_descriptors_private};

/// The signals that a keeper forwards: all that end a process by default and can be caught. If the run
/// does not handle one, the agent dies of it, and so does the keeper.
const FORWARDED: [i32; 11] = [
    Signal::HUP.as_raw(),
    Signal::INT.as_raw(),
    Signal::QUIT.as_raw(),
    Signal::USR1.as_raw(),
    Signal::USR2.as_raw(),
    Signal::ALARM.as_raw(),
    Signal::TERM.as_raw(),
    Signal::VTALARM.as_raw(),
    Signal::PROF.as_raw(),
    Signal::IO.as_raw(),
    Signal::POWER.as_raw(),
];

/// Time for leftovers to end after SIGKILL before the keeper gives them up.
const ABANDON_AFTER: Duration = Duration::from_secs(10);

/// Time for the agent to end by itself once its keeper is gone.
const LAST_RESORT_AFTER: Duration = Duration::from_millis(700);

/// Whether this process was started by a keeper, so that it is the agent.
pub fn is_kept() -> bool {
    keeper().is_some()
}

/// The process id of the launcher as the user knows it: the keeper's, or ours without one.
pub fn launcher_pid() -> u32 {
    let raw = keeper().unwrap_or_else(getpid).as_raw_nonzero().get();
    u32::try_from(raw).unwrap_or_default()
}

fn keeper() -> Option<Pid> {
    let named = Pid::from_raw(env::var(RDZV_KEEPER).ok()?.parse().ok()?)?;
    // Workers do not see the variable; but it may be set by hand, so the parent is checked.
    (getppid() == Some(named)).then_some(named)
}

/// The end of an agent.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct AgentEnd {
    /// How it ended, for [`end_like`].
    pub status: ExitStatus,
    /// Its process id.
    pub pid: u32,
}

/// Starts the agent and waits for its end; then kills and collects whatever is left of the run.
///
/// `agent` is this program again, with the same arguments; in it [`is_kept`] is true. Has to be
/// called on the main thread.
pub fn keep(agent: Command) -> Result<AgentEnd, AgentError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .map_err(system("start the keeper's event loop"))?;
    runtime.block_on(keep_agent(agent))
}

async fn keep_agent(mut command: Command) -> Result<AgentEnd, AgentError> {
    let mut signals = Signals::new(FORWARDED).map_err(system("handle signals"))?;
    let mut job_control = JobControl::new().map_err(system("handle SIGTSTP and SIGCONT"))?;
    let mut children = signal(SignalKind::child()).map_err(system("wait for the agent"))?;
    keep_descriptors_private().map_err(system("look at inherited descriptors"))?;
    let leftovers = Leftovers::adopt().map_err(system("adopt orphaned processes (subreaper)"))?;
    command.env(RDZV_KEEPER, getpid().as_raw_nonzero().to_string());
    detach(&mut command, Signal::TERM);
    let child = command.spawn().map_err(system("start the agent"))?;
    let agent = Pid::from_child(&child);
    let ours = HashSet::from([agent]);
    let status = loop {
        tokio::select! {
            biased;
            _ = children.recv() => {
                leftovers.collect(&ours);
                let ended = waitpid(Some(agent), WaitOptions::NOHANG)
                    .map_err(|errno| system("wait for the agent")(errno.into()))?;
                if let Some((_, status)) = ended {
                    break ExitStatus::from_raw(status.as_raw());
                }
            }
            request = job_control.next() => match request {
                JobRequest::Suspend => {
                    let _ = kill_process(agent, Signal::TSTP);
                    stop_this_process();
                }
                JobRequest::Continue => {
                    let _ = kill_process(agent, Signal::CONT);
                }
            },
            number = signals.next() => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // The agent is not collected yet, so this cannot hit another process.
                    let _ = kill_process(agent, signal);
                }
            }
        }
    };
    let group = ControlGroup::of_agent(agent);
    if let Some(group) = &group {
        group.kill_all();
    }
    let until = Instant::now() + ABANDON_AFTER;
    while !leftovers.kill(&HashSet::new()) {
        if timeout_at(until, children.recv()).await.is_err() {
            tracing::error!("processes of the run do not end in spite of SIGKILL");
            break;
        }
    }
    if let Some(group) = group {
        group.remove();
    }
    let pid = child.id();
    Ok(AgentEnd { status, pid })
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

/// The agent's watch on its keeper. The default watches nobody.
#[derive(Debug, Default)]
pub(crate) struct KeeperWatch {
    keeper: Option<AsyncFd<OwnedFd>>,
}

impl KeeperWatch {
    /// Watches the keeper, if there is one. To be called inside the runtime.
    pub(crate) fn new(leftovers: &Leftovers) -> io::Result<Self> {
        let Some(pid) = keeper() else {
            return Ok(Self { keeper: None });
        };
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let (watched, leftovers) = (pidfd.try_clone()?, leftovers.clone());
        thread::Builder::new()
            .name("last resort".to_owned())
            .stack_size(128 << 10)
            .spawn(move || last_resort(&watched, &leftovers))?;
        let keeper = awaitable(pidfd)?;
        // From here on its end is noticed, and the signal would only be taken for a request.
        // If it had ended before, that signal has ended us: it is not handled without a reason.
        set_parent_process_death_signal(None)?;
        Ok(Self {
            keeper: Some(keeper),
        })
    }

    /// Whether there is a keeper, as far as is known.
    pub(crate) fn is_there(&self) -> bool {
        self.keeper.is_some()
    }

    /// Waits until the keeper is gone; permanently if there is none.
    pub(crate) async fn lost(&mut self) {
        if let Some(keeper) = &self.keeper
            && keeper.readable().await.is_ok()
        {
            // Reported once; the descriptor would stay readable.
            self.keeper = None;
            return;
        }
        std::future::pending::<()>().await;
    }
}

/// Ends the agent and everything below it if it has not ended by itself soon after its keeper.
///
/// The agent's own thread may be blocked by a console without a reader: the keeper was killed, but the
/// reader of its pipe is suspended. Workers must not live on because of that.
fn last_resort(keeper: &OwnedFd, leftovers: &Leftovers) {
    while let Err(Errno::INTR) = poll(&mut [PollFd::new(keeper, PollFlags::IN)], None) {}
    let deadline = Timespec::try_from(LAST_RESORT_AFTER).expect("less than a second is in range");
    let _ = poll(&mut [], Some(&deadline));
    let group = ControlGroup::of_agent(getpid());
    if let Some(group) = &group {
        group.kill_all();
    }
    while !leftovers.kill(&HashSet::new()) {
        let _ = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    }
    if let Some(group) = group {
        group.remove();
    }
    process::exit(1);
}

fn system(what: &'static str) -> impl Fn(io::Error) -> AgentError {
    move |source| AgentError::System { what, source }
}
