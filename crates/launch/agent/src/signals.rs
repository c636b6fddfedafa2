//! Signals that are handled: those that end a run in order, those that are for the workers, and those
//! of job control (Ctrl-Z, `fg`). A signal that is ignored when the launcher is started stays ignored,
//! by the workers too.
//!
//! ```text
//!   SIGTSTP ─► keeper ── SIGTSTP ─► agent ── SIGSTOP ─► workers' process groups
//!                └─ stops itself      └─ only waits
//!   SIGCONT ─► keeper ── SIGCONT ─► agent ── SIGCONT ─► workers' process groups
//! ```
//!
//! * Workers get SIGSTOP, because the kernel ignores SIGTSTP in process groups like theirs, which
//!   no shell looks after.
//! * The agent's clock is suspended meanwhile, so that no grace, no limit and no heartbeat that it
//!   waits for counts the time. Its threads go on: the store answers, and the heartbeats of the
//!   rendezvous are sent, so that the other nodes keep this one. (Their workers wait for these ones
//!   in collectives, whose own limits count on.) Without a keeper the agent stops itself, too: the
//!   other nodes then lose it as soon as their heartbeats say so.
//! * A signal that ends the run, or the loss of the keeper, ends the suspension.
//! * SIGSTOP cannot be handled. Whoever sends it to the keeper or to a worker stops that process
//!   only; nobody takes a stopped worker for one that has ended.

use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::thread;

use nix::sys::signal::SigSet;
use rustix::process::{self, Pid, getpid, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals whose meaning is left to programs: workers get them.
pub(crate) const FOR_WORKERS: [process::Signal; 2] = [process::Signal::USR1, process::Signal::USR2];

/// The signals that a guard sends to its agent in place of those for the workers; nothing else uses them.
const CARRIERS: [(process::Signal, process::Signal); 2] = [
    (process::Signal::USR1, process::Signal::URG),
    (process::Signal::USR2, process::Signal::STKFLT),
];

/// The signal that a guard sends to its agent in place of this one.
pub(crate) fn carrier_of(signal: process::Signal) -> process::Signal {
    let carrier = CARRIERS.iter().find(|(carried, _)| *carried == signal);
    carrier.map_or(signal, |(_, carrier)| *carrier)
}

/// The number of the signal that a guard has sent this one for.
pub(crate) fn carried_by(number: i32) -> Option<i32> {
    let carried = CARRIERS
        .iter()
        .find(|(_, carrier)| carrier.as_raw() == number);
    carried.map(|(carried, _)| carried.as_raw())
}

/// All that guards send in place of others.
pub(crate) fn carriers() -> impl Iterator<Item = process::Signal> {
    CARRIERS.into_iter().map(|(_, carrier)| carrier)
}

/// The set of some signals.
pub(crate) fn signal_set(signals: impl IntoIterator<Item = process::Signal>) -> SigSet {
    let known = |signal: process::Signal| nix::sys::signal::Signal::try_from(signal.as_raw()).ok();
    signals.into_iter().filter_map(known).collect()
}

/// Takes the signals in that were blocked. To be called once they are handled.
pub(crate) fn unblock() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}

/// A set of signals that are waited for instead of doing what they do by default.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    streams: Vec<(i32, Signal)>,
}

impl Signals {
    /// Handles these signals from here on. To be called inside the runtime.
    ///
    /// One that was being ignored stays ignored: that is how `nohup` asks for a run that outlives
    /// its terminal, and a shell for one in the background that Ctrl-C does not end.
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

    /// Waits for the next one. May be dropped while waiting.
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

/// Calls `act` on a thread of its own when one of these signals comes, after a run that has handled
/// them.
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

/// A request of job control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobRequest {
    /// To suspend the job (Ctrl-Z).
    Suspend,
    /// To continue it (`fg`).
    Continue,
}

/// SIGTSTP and SIGCONT, waited for.
#[derive(Debug, Default)]
pub(crate) struct JobControl {
    /// `None` if SIGTSTP was being ignored, which stays so.
    suspend: Option<Signal>,
    resume: Option<Signal>,
}

impl JobControl {
    /// Handles both from here on. To be called inside the runtime. [`JobControl::default`] handles
    /// neither.
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

    /// Waits for the next request. May be dropped while waiting.
    ///
    /// If both have come, they are taken for a suspension that is over: a job that is suspended
    /// where nobody will continue it any more is worse than the contrary.
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

/// Stops this process until somebody sends it SIGCONT.
pub(crate) fn stop_this_process() {
    let _ = kill_process(getpid(), process::Signal::STOP);
}

/// Whether this process ignores a signal, as whoever started it has arranged.
fn is_ignored(number: i32) -> bool {
    (1..=64).contains(&number) && ignored_signals() & (1 << (number - 1)) != 0
}

/// Whether another process has a handler for a signal; true if the kernel does not say.
pub(crate) fn is_handled(pid: Pid, number: i32) -> bool {
    let caught = signal_mask(&format!("/proc/{pid}/status"), "SigCgt:");
    caught.is_none_or(|caught| (1..=64).contains(&number) && caught & (1 << (number - 1)) != 0)
}

/// A mask of signals in a file of `/proc`.
fn signal_mask(path: &str, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(path).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
}

/// The mask of signals that this process ignored when it was started; none if the kernel does not say.
fn ignored_signals() -> u64 {
    static IGNORED: OnceLock<u64> = OnceLock::new();
    *IGNORED.get_or_init(|| signal_mask("/proc/self/status", "SigIgn:").unwrap_or(0))
}
