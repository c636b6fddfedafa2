//! Waiting for a child process.
//!
//! The waiting process passes signals on to the child and kills what the child leaves behind.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rdzv_rendezvous::Kept;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, timeout_at};

use super::stopped_agent::StoppedAgent;
use crate::AgentError;
use crate::control_group::ControlGroup;
use crate::error::system;
use crate::logs::stderr_takes_lines;
use crate::reap::Leftovers;
use crate::signals::{
    JobControl, JobRequest, Signals, carrier_of, carriers, signal_set, stop_this_process, unblock,
};

/// Signals that are passed on to the child.
/// These are signals that end a process by default, and SIGWINCH for a new terminal size. A signal
/// that the run does not handle ends the agent, and then the keeper ends the same way.
const PASSED_ON: [Signal; 12] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::TERM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
    Signal::WINCH,
];

/// Signals that request an exit.
const ENDS: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// Time for leftovers to exit after SIGKILL; then the process stops waiting.
const ABANDON_AFTER: Duration = Duration::from_secs(10);

/// Blocks the signals that an [`Attendant`] passes on, and their carriers.
pub(super) fn block_signals() -> Result<(), AgentError> {
    let blocked = signal_set(PASSED_ON.into_iter().chain(carriers())).thread_block();
    blocked.map_err(system("block signals"))
}

pub(super) fn event_loop() -> Result<LocalRuntime, AgentError> {
    Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .map_err(system("start the keeper's event loop"))
}

/// Makes this process the subreaper of its descendants.
///
/// Call this function before the start of the child if possible: it never clears earlier children.
pub(super) fn adopt_orphans() -> Result<Leftovers, AgentError> {
    Leftovers::adopt().map_err(system("adopt orphans (subreaper)"))
}

/// Process that waits for one child.
pub(super) struct Attendant {
    signals: Signals,
    job_control: JobControl,
    children: unix::Signal,
    leftovers: Leftovers,
    /// `true` in the keeper.
    /// Ctrl-Z stops the keeper too, and the keeper resumes a guard that is stopped.
    outermost: bool,
    passed_on: Vec<Signal>,
    /// State of an agent that is stopped, and of its workers.
    stopped: StoppedAgent,
}

impl Attendant {
    /// Handles signals from now on, including those that arrived while blocked.
    /// Must be called inside the runtime.
    pub(super) fn new(
        leftovers: Leftovers,
        outermost: bool,
        kept: Option<Kept>,
    ) -> Result<Self, AgentError> {
        let signals =
            Signals::new(PASSED_ON.map(Signal::as_raw)).map_err(system("handle signals"))?;
        let job_control = JobControl::new().map_err(system("handle SIGTSTP and SIGCONT"))?;
        let children =
            unix::signal(SignalKind::child()).map_err(system("wait for exited processes"))?;
        unblock().map_err(system("unblock signals"))?;
        Ok(Self {
            signals,
            job_control,
            children,
            leftovers,
            outermost,
            passed_on: Vec::new(),
            stopped: StoppedAgent::new(kept),
        })
    }

    /// Waits for the child's exit, and passes signals on to the child.
    pub(super) async fn ended(&mut self, child: Pid) -> Result<ExitStatus, AgentError> {
        let ours = HashSet::from([child]);
        // The child is not reaped yet, so a signal cannot hit another process.
        loop {
            // Checks before the first wait too: the child may have exited before SIGCHLD was
            // handled.
            let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
            let changed = waitpid(Some(child), options).map_err(system("wait for a child"))?;
            match changed {
                // A guard that is stopped guards nothing.
                Some((_, status)) if status.stopped() && self.outermost => {
                    let _ = kill_process(child, Signal::CONT);
                }
                Some((_, status)) if status.stopped() => self.stopped.begin(),
                Some((_, status)) if status.continued() => self.stopped.end(),
                Some((_, status)) => return Ok(ExitStatus::from_raw(status.as_raw())),
                None => {}
            }
            tokio::select! {
                biased;
                _ = self.children.recv() => {
                    // If the child itself has exited, the next turn notices it.
                    self.leftovers.collect(&ours);
                }
                () = self.stopped.stop_in_time(child) => {}
                request = self.job_control.next() => match request {
                    JobRequest::Suspend => {
                        let _ = kill_process(child, Signal::TSTP);
                        if self.outermost {
                            stop_this_process();
                        }
                    }
                    JobRequest::Continue => {
                        let _ = kill_process(child, Signal::CONT);
                    }
                },
                number = self.signals.next() => {
                    if let Some(signal) = Signal::from_named_raw(number) {
                        self.passed_on.push(signal);
                        // The carrier shows the agent that it did not receive the signal directly.
                        let signal = if self.outermost { signal } else { carrier_of(signal) };
                        let _ = kill_process(child, signal);
                    }
                }
            }
        }
    }

    /// Returns `true` if a signal that was passed on explains a child's exit.
    ///
    /// Any signal that requests an exit explains it.
    pub(super) fn has_ended_it(&self, status: ExitStatus) -> bool {
        let by = status.signal().and_then(Signal::from_named_raw);
        let mut passed_on = self.passed_on.iter();
        passed_on.any(|signal| {
            ENDS.contains(signal) || by == Some(carrier_of(*signal)) || by == Some(*signal)
        })
    }

    /// Returns `true` if this process receives a request to exit within `time`.
    pub(super) async fn ends_within(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while !time.is_zero()
            && let Ok(number) = timeout_at(deadline, self.signals.next()).await
        {
            if Signal::from_named_raw(number).is_some_and(|signal| ENDS.contains(&signal)) {
                return true;
            }
        }
        false
    }

    /// Kills and reaps all processes that the child left behind.
    /// Returns `false` if one of them does not exit.
    pub(super) async fn clear(&mut self, group: Option<ControlGroup>) -> bool {
        if let Some(group) = &group {
            group.kill_all();
        }
        let deadline = Instant::now() + ABANDON_AFTER;
        let mut is_clear = true;
        while !self.leftovers.kill(&HashSet::new()) {
            let waited = timeout_at(deadline, self.children.recv()).await;
            if waited.is_err() || Instant::now() > deadline {
                // If the console is not read, the message would block the exit.
                if stderr_takes_lines() {
                    tracing::error!("processes of the run do not exit in spite of SIGKILL");
                }
                is_clear = false;
                break;
            }
        }
        if let Some(group) = group {
            group.remove();
        }
        is_clear
    }
}
