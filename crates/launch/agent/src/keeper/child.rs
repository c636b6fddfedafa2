//! A child that is waited for: signals are passed on to it, and what it leaves behind is killed.

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

/// The signals that are passed on: all that end a process by default and can be caught, and that a terminal has
/// another size. If the run
/// does not handle one, the agent dies of it, and so does the keeper.
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

/// Those of them by which people end a run.
const ENDS: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// Time for leftovers to end after SIGKILL before they are given up.
const ABANDON_AFTER: Duration = Duration::from_secs(10);

/// Blocks the signals that [`Attendant::new`] handles.
pub(super) fn block_signals() -> Result<(), AgentError> {
    let blocked = signal_set(PASSED_ON.into_iter().chain(carriers())).thread_block();
    blocked.map_err(system("block signals"))
}

/// The event loop of a keeper or a guard.
pub(super) fn event_loop() -> Result<LocalRuntime, AgentError> {
    Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .map_err(system("start the keeper's event loop"))
}

/// Lets orphans below this process come to it. To be called before the child is started if it can
/// be: a child of before is never among what is cleared.
pub(super) fn adopt_orphans() -> Result<Leftovers, AgentError> {
    Leftovers::adopt().map_err(system("adopt orphans (subreaper)"))
}

/// Waits for one child.
pub(super) struct Attendant {
    signals: Signals,
    job_control: JobControl,
    children: unix::Signal,
    leftovers: Leftovers,
    /// Whether this is the keeper: Ctrl-Z stops it too, and its child always goes on.
    outermost: bool,
    /// The signals that were passed on.
    passed_on: Vec<Signal>,
    /// The workers of a child that is stopped.
    stopped: StoppedAgent,
}

impl Attendant {
    /// Handles signals from here on, also those that came while they were blocked. To be called
    /// inside the runtime.
    pub(super) fn new(
        leftovers: Leftovers,
        outermost: bool,
        kept: Option<Kept>,
    ) -> Result<Self, AgentError> {
        let signals =
            Signals::new(PASSED_ON.map(Signal::as_raw)).map_err(system("handle signals"))?;
        let job_control = JobControl::new().map_err(system("handle SIGTSTP and SIGCONT"))?;
        let children =
            unix::signal(SignalKind::child()).map_err(system("wait for ended processes"))?;
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

    /// Waits for the child's end, and passes signals on to it.
    pub(super) async fn ended(&mut self, child: Pid) -> Result<ExitStatus, AgentError> {
        let ours = HashSet::from([child]);
        // The child is not collected yet, so a signal cannot hit another process.
        loop {
            // Before the first wait too: the child may have ended before SIGCHLD was handled.
            let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
            let changed = waitpid(Some(child), options).map_err(system("wait for a child"))?;
            match changed {
                // A guard that is stopped guards nobody.
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
                    // If the child itself has ended, that is seen in the next turn.
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
                        // The agent is to know what came to it directly.
                        let signal = if self.outermost { signal } else { carrier_of(signal) };
                        let _ = kill_process(child, signal);
                    }
                }
            }
        }
    }

    /// Whether a child has ended because of a signal that was passed on to it, or was told to end.
    pub(super) fn has_ended_it(&self, status: ExitStatus) -> bool {
        let by = status.signal().and_then(Signal::from_named_raw);
        let mut passed_on = self.passed_on.iter();
        passed_on.any(|signal| {
            ENDS.contains(signal) || by == Some(carrier_of(*signal)) || by == Some(*signal)
        })
    }

    /// True if this process is told to end within that time.
    pub(super) async fn ends_within(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !time.is_zero()
            && let Ok(number) = timeout_at(until, self.signals.next()).await
        {
            if Signal::from_named_raw(number).is_some_and(|signal| ENDS.contains(&signal)) {
                return true;
            }
        }
        false
    }

    /// Kills and collects whatever the child has left. False if something does not end.
    pub(super) async fn clear(&mut self, group: Option<ControlGroup>) -> bool {
        if let Some(group) = &group {
            group.kill_all();
        }
        let until = Instant::now() + ABANDON_AFTER;
        let mut is_clear = true;
        while !self.leftovers.kill(&HashSet::new()) {
            let waited = timeout_at(until, self.children.recv()).await;
            if waited.is_err() || Instant::now() > until {
                // A console that nobody reads must not hold up the end.
                if stderr_takes_lines() {
                    tracing::error!("processes of the run do not end in spite of SIGKILL");
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
