//! Signals that the launcher and the agent handle.
//!
//! Some end a run in order, some are for the workers, and some are for job control (Ctrl-Z, `fg`).
//! A signal that the launcher ignores at its start stays ignored, by the workers too.
//!
//! ```text
//!   SIGTSTP ─► keeper ── SIGTSTP ─► agent ── SIGSTOP ─► workers' process groups
//!                └─ stops itself      └─ only waits
//!   SIGCONT ─► keeper ── SIGCONT ─► agent ── SIGCONT ─► workers' process groups
//! ```
//!
//! * The guard between keeper and agent passes both signals on.
//! * Workers get SIGSTOP. They would ignore SIGTSTP: the kernel discards it in process groups
//!   without a shell that manages them.
//! * During the suspension, the agent's clock is suspended too. No shutdown timeout, limit or
//!   heartbeat of the agent counts this time.
//! * The agent's threads continue during the suspension: the store answers, and the rendezvous
//!   sends heartbeats. The other nodes therefore keep this node. Their workers wait for the
//!   suspended ones in collectives, whose own limits still count.
//! * Without a keeper the agent stops itself too. The other nodes then lose it when its heartbeats
//!   stop.
//! * A signal that ends the run, a notice of preemption, or the loss of the keeper ends the
//!   suspension.
//! * SIGSTOP cannot be handled. If a user sends it to the keeper or to a worker, only that process
//!   stops. The agent does not mistake a stopped worker for one that has ended.

use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::thread;

use nix::sys::signal::SigSet;
use rustix::process::{self, Pid, getpid, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals without a fixed meaning, which the agent passes on to the workers.
pub(crate) const FOR_WORKERS: [process::Signal; 2] = [process::Signal::USR1, process::Signal::USR2];

/// Signals that a guard sends to its agent in place of those for the workers.
/// Nothing else uses these signals.
const CARRIERS: [(process::Signal, process::Signal); 2] = [
    (process::Signal::USR1, process::Signal::URG),
    (process::Signal::USR2, process::Signal::STKFLT),
];

/// Returns the signal that a guard sends to its agent in place of this one.
pub(crate) fn carrier_of(signal: process::Signal) -> process::Signal {
    let carrier = CARRIERS.iter().find(|(carried, _)| *carried == signal);
    carrier.map_or(signal, |(_, carrier)| *carrier)
}

/// Returns the number of the signal for which a guard sent this one.
pub(crate) fn carried_by(number: i32) -> Option<i32> {
    let carried = CARRIERS
        .iter()
        .find(|(_, carrier)| carrier.as_raw() == number);
    carried.map(|(carried, _)| carried.as_raw())
}

/// Returns all signals that guards send in place of others.
pub(crate) fn carriers() -> impl Iterator<Item = process::Signal> {
    CARRIERS.into_iter().map(|(_, carrier)| carrier)
}

/// Converts signals to a set of `nix`.
pub(crate) fn signal_set(signals: impl IntoIterator<Item = process::Signal>) -> SigSet {
    let known = |signal: process::Signal| nix::sys::signal::Signal::try_from(signal.as_raw()).ok();
    signals.into_iter().filter_map(known).collect()
}

/// Unblocks all signals; must be called once they are handled.
pub(crate) fn unblock() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Set of signals that are received as events and lose their default effect.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    streams: Vec<(i32, Signal)>,
}

impl Signals {
    /// Handles these signals from now on.
    ///
    /// Must be called inside the runtime. A signal that this process ignores stays ignored. `nohup`
    /// uses this so that a run outlives its terminal, and a shell uses it to protect a background
    /// job from Ctrl-C.
    pub(crate) fn new(numbers: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        let mut streams: Vec<(i32, Signal)> = Vec::new();
        for number in numbers {
            let known = streams.iter().any(|(known, _)| *known == number);
            if known || is_ignored(number) {
                continue;
            }
            streams.push((number, signal(SignalKind::from_raw(number))?));
        }
        Ok(Self { streams })
    }

    /// Waits for the next signal.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Calls `act` on a new thread when one of these signals arrives.
/// For use after a run that has handled these signals.
///
/// # Errors
///
/// Returns the error of the system if no thread can be started.
pub fn when_signalled(numbers: Vec<i32>, act: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let wait = move || -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            act(Signals::new(numbers)?.next().await);
            Ok(())
        })
    };
    let thread = thread::Builder::new().name("signals".to_owned());
    thread.stack_size(128 << 10).spawn(wait).map(drop)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobRequest {
    /// Suspend the job (Ctrl-Z).
    Suspend,
    /// Continue the job (`fg`).
    Continue,
}

/// Receiver of SIGTSTP and SIGCONT.
#[derive(Debug, Default)]
pub(crate) struct JobControl {
    /// `None` if this process ignores SIGTSTP; the signal then stays ignored.
    suspend: Option<Signal>,
    resume: Option<Signal>,
}

impl JobControl {
    /// Handles both signals from now on; [`JobControl::default`] handles neither.
    /// Must be called inside the runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let stop = process::Signal::TSTP.as_raw();
        Ok(Self {
            suspend: if is_ignored(stop) {
                None
            } else {
                Some(signal(SignalKind::from_raw(stop))?)
            },
            resume: Some(signal(SignalKind::from_raw(
                process::Signal::CONT.as_raw(),
            ))?),
        })
    }

    /// Waits for the next request.
    ///
    /// Cancel-safe: the caller may drop the future. If both signals have arrived, the result is
    /// [`JobRequest::Continue`]. A job that runs despite a suspension does less harm than a job
    /// that stays suspended.
    pub(crate) async fn next(&mut self) -> JobRequest {
        let received = |stream: &mut Option<Signal>, context: &mut Context<'_>| {
            let stream = stream.as_mut();
            stream.is_some_and(|stream| stream.poll_recv(context).is_ready())
        };
        poll_fn(|context| {
            let suspend = received(&mut self.suspend, context);
            if received(&mut self.resume, context) {
                Poll::Ready(JobRequest::Continue)
            } else if suspend {
                Poll::Ready(JobRequest::Suspend)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

/// Stops this process until it receives SIGCONT.
pub(crate) fn stop_this_process() {
    let _ = kill_process(getpid(), process::Signal::STOP);
}

/// Returns `true` if this process was started with this signal ignored.
fn is_ignored(number: i32) -> bool {
    (1..=64).contains(&number) && ignored_signals() & (1 << (number - 1)) != 0
}

/// Returns `true` if another process has a handler for a signal.
/// Also returns `true` if the kernel does not provide the information.
pub(crate) fn is_handled(pid: Pid, number: i32) -> bool {
    let caught = signal_mask(&format!("/proc/{pid}/status"), "SigCgt:");
    caught.is_none_or(|caught| (1..=64).contains(&number) && caught & (1 << (number - 1)) != 0)
}

/// Reads a mask of signals from a file of `/proc`.
fn signal_mask(path: &str, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(path).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
}

/// Returns the mask of signals that this process ignored at its start.
/// The mask is empty if the kernel does not provide it.
fn ignored_signals() -> u64 {
    static IGNORED: OnceLock<u64> = OnceLock::new();
    *IGNORED.get_or_init(|| signal_mask("/proc/self/status", "SigIgn:").unwrap_or(0))
}
