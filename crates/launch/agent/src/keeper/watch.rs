//! The agent's view of the processes around it.

use std::collections::HashSet;
use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, ExitStatus};
use std::sync::OnceLock;
use std::thread;

use rdzv_core::env::{RDZV_GUARD, RDZV_KEEPER, RDZV_KEPT};
use rdzv_rendezvous::Kept;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, getppid, pidfd_open,
    set_parent_process_death_signal, waitid,
};
use tokio::io::unix::AsyncFd;

use super::LAST_RESORT_AFTER;
use super::restarts::Restart;
use crate::control_group::ControlGroup;
use crate::exits::awaitable;
use crate::reap::Leftovers;
use crate::spawn::inherited;

/// The process ids of keeper and guard, if the guard has started this process. Found out once: when the
/// guard has ended, somebody else is the parent.
fn around() -> Option<(Pid, Pid)> {
    static AROUND: OnceLock<Option<(Pid, Pid)>> = OnceLock::new();
    *AROUND.get_or_init(|| {
        let guard = pid_in(RDZV_GUARD)?;
        // Workers do not see the variables; but they may be set by hand, so the parent is checked.
        (getppid() == Some(guard)).then(|| Some((pid_in(RDZV_KEEPER)?, guard)))?
    })
}

/// Whether this process was started by a keeper, so that it is the agent.
pub fn is_kept() -> bool {
    around().is_some()
}

/// The process id of the launcher as the user knows it: the keeper's, or ours without one.
pub fn launcher_pid() -> u32 {
    u32::try_from(launcher().as_raw_nonzero().get()).unwrap_or_default()
}

/// The same.
pub(crate) fn launcher() -> Pid {
    around().map_or_else(getpid, |(keeper, _)| keeper)
}

/// The sockets and notes that outlive this agent, if a guard has started it. To be called before there is a second thread
/// or process: it keeps the descriptors from being inherited further.
pub fn kept() -> Option<&'static Kept> {
    static KEPT: OnceLock<Option<Kept>> = OnceLock::new();
    let kept = KEPT.get_or_init(|| {
        around()?;
        let numbers = env::var(RDZV_KEPT).ok()?;
        let numbers = numbers.split(',').map(|number| number.parse().ok());
        let descriptors = numbers.map(|number| inherited(number?).ok());
        let descriptors: Vec<OwnedFd> = descriptors.collect::<Option<_>>()?;
        let kept = Kept::inherited(descriptors.try_into().ok()?);
        kept.inspect_err(|error| tracing::warn!("what the guard keeps cannot be read: {error}"))
            .ok()
    });
    kept.as_ref()
}

/// Why this agent was started, if one before it was killed.
pub(crate) fn last_death(kept: &Kept) -> Option<Restart> {
    let note = kept.note();
    let death = note.last_death?;
    Some(Restart {
        ended: ExitStatus::from_raw(death.status),
        short: death.short,
        most: note.restarts,
    })
}

fn pid_in(variable: &str) -> Option<Pid> {
    Pid::from_raw(env::var(variable).ok()?.parse().ok()?)
}

/// The agent's watch on its keeper and its guard. The default watches nobody.
#[derive(Debug, Default)]
pub(crate) struct KeeperWatch {
    both: Option<[AsyncFd<OwnedFd>; 2]>,
}

impl KeeperWatch {
    /// Watches the two, if they are there. To be called inside the runtime.
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
        // From here on the guard's end is noticed, unless this process is stopped: so it goes on
        // then.
        set_parent_process_death_signal(Some(Signal::CONT))?;
        // If it had ended before, the signal that came for that may have been taken for the user's.
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        Ok(Self { both })
    }

    /// Whether the two are there, as far as is known.
    pub(crate) fn is_there(&self) -> bool {
        self.both.is_some()
    }

    /// Waits until one of the two is gone; permanently if there is none.
    pub(crate) async fn lost(&mut self) {
        if let Some([keeper, guard]) = &self.both {
            let _ = tokio::select! {
                ended = keeper.readable() => ended,
                ended = guard.readable() => ended,
            };
            // Reported once; the descriptors would stay readable.
            self.both = None;
            return;
        }
        std::future::pending::<()>().await;
    }
}

/// Ends the agent and everything below it if it has not ended by itself soon after keeper or guard.
///
/// The agent's own thread may be blocked by a console without a reader: the keeper was killed, but
/// the reader of its pipe is suspended. Workers must not live on because of that.
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
