//! Agent's view of the processes around it.

use std::collections::HashSet;
use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, ExitStatus};
use std::sync::OnceLock;
use std::thread;

use rdzv_core::env::{RDZV_GUARD, RDZV_KEEPER, RDZV_KEPT};
use rdzv_core::time::Wall;
use rdzv_rendezvous::Kept;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, getppid, pidfd_open,
    set_parent_process_death_signal, waitid,
};
use tokio::io::unix::AsyncFd;

use super::LAST_RESORT_AFTER;
use super::restarts::RestartReason;
use crate::control_group::ControlGroup;
use crate::exits::awaitable;
use crate::reap::Leftovers;
use crate::spawn::inherited;

/// Returns the ids of keeper and guard, if the guard started this process.
/// The result is cached, because this process gets another parent when the guard exits.
fn around() -> Option<(Pid, Pid)> {
    static AROUND: OnceLock<Option<(Pid, Pid)>> = OnceLock::new();
    *AROUND.get_or_init(|| {
        let guard = pid_in(RDZV_GUARD)?;
        // Workers do not see the variables. A user may set them by hand, so this checks the parent.
        (getppid() == Some(guard)).then(|| Some((pid_in(RDZV_KEEPER)?, guard)))?
    })
}

/// Returns `true` if a keeper started this process, which is then the agent.
pub fn is_kept() -> bool {
    around().is_some()
}

/// Returns the process id that the user knows as the launcher.
/// This is the keeper's id, or that of this process without a keeper.
pub fn launcher_pid() -> u32 {
    u32::try_from(launcher().as_raw_nonzero().get()).unwrap_or_default()
}

pub(crate) fn launcher() -> Pid {
    around().map_or_else(getpid, |(keeper, _)| keeper)
}

/// Returns the sockets and the record that outlive this agent.
/// `None` if no guard started this process, or if they cannot be used. Must be called before a
/// second thread or process exists, because it stops the descriptors from being inherited further.
pub fn kept() -> Option<&'static Kept> {
    static KEPT: OnceLock<Option<Kept>> = OnceLock::new();
    let kept = KEPT.get_or_init(|| {
        around()?;
        let numbers = env::var(RDZV_KEPT).ok()?;
        let numbers = numbers.split(',').map(|number| number.parse().ok());
        let descriptors = numbers.map(|number| inherited(number?).ok());
        let descriptors: Vec<OwnedFd> = descriptors.collect::<Option<_>>()?;
        let kept = Kept::inherited(descriptors.try_into().ok()?);
        kept.inspect_err(|error| {
            tracing::warn!("cannot use the state that the guard retains: {error}");
        })
        .ok()
    });
    kept.as_ref()
}

/// Returns the time of the last agent's death, and the reason for this restart.
/// `None` if no agent has been killed or has panicked.
pub(crate) fn last_death(kept: &Kept) -> Option<(Wall, RestartReason)> {
    let note = kept.note();
    let death = note.last_death?;
    let reason = RestartReason {
        ended: ExitStatus::from_raw(death.status),
        short: death.short,
        most: note.restarts,
    };
    Some((death.at, reason))
}

fn pid_in(variable: &str) -> Option<Pid> {
    Pid::from_raw(env::var(variable).ok()?.parse().ok()?)
}

/// Agent's watch on its keeper and its guard; the default watches nothing.
#[derive(Debug, Default)]
pub(crate) struct KeeperWatch {
    both: Option<[AsyncFd<OwnedFd>; 2]>,
}

impl KeeperWatch {
    /// Watches both if they exist; must be called inside the runtime.
    pub(crate) fn new(leftovers: &Leftovers) -> io::Result<Self> {
        let Some((keeper, parent)) = around() else {
            return Ok(Self::default());
        };
        let keeper = pidfd_open(keeper, PidfdFlags::empty())?;
        let guard = pidfd_open(parent, PidfdFlags::empty())?;
        let watched = [keeper.try_clone()?, guard.try_clone()?];
        let leftovers = leftovers.clone();
        thread::Builder::new()
            .name("last resort".to_owned())
            .stack_size(128 << 10)
            .spawn(move || last_resort(&watched, &leftovers))?;
        let both = Some([awaitable(keeper)?, awaitable(guard)?]);
        // From now on this process notices the guard's end, unless this process is stopped. SIGCONT
        // then resumes it.
        set_parent_process_death_signal(Some(Signal::CONT))?;
        // If the guard exited earlier, the signal for that may look like a signal from the user.
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        Ok(Self { both })
    }

    /// Returns `true` if keeper and guard exist, as far as is known.
    pub(crate) fn is_there(&self) -> bool {
        self.both.is_some()
    }

    /// Waits until keeper or guard exits; never returns without a keeper.
    pub(crate) async fn lost(&mut self) {
        if let Some([keeper, guard]) = &self.both {
            let _ = tokio::select! {
                ended = keeper.readable() => ended,
                ended = guard.readable() => ended,
            };
            // Reported once; otherwise the descriptors would stay readable.
            self.both = None;
            return;
        }
        std::future::pending::<()>().await;
    }
}

/// Kills the agent and its descendants if it outlives keeper or guard.
///
/// The agent gets some time to exit alone. Its main thread may be blocked by a console that no
/// process reads: the keeper was killed, but the reader of its pipe is suspended. Workers must not
/// survive because of that.
fn last_resort(watched: &[OwnedFd; 2], leftovers: &Leftovers) {
    let mut either = watched
        .each_ref()
        .map(|pidfd| PollFd::new(pidfd, PollFlags::IN));
    while let Err(Errno::INTR) = poll(&mut either, None) {}
    let deadline = Timespec::try_from(LAST_RESORT_AFTER).expect("less than a second is in range");
    let _ = poll(&mut [], Some(&deadline));
    let group = ControlGroup::of_launcher(launcher());
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
