//! The keeper of a service that has no workers: `rdzv store`.
//!
//! ```text
//!   keeper         the process that the user started: has the listening sockets, passes signals on
//!     └─ service   serves on them; dies with the keeper (parent-death signal)
//! ```
//!
//! A service that was killed is started again, by another fork of the same keeper. Meanwhile the
//! sockets stay open, so peers find the kernel's queue of connections and not a refusal.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as Number};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rdzv_event::poll;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_parent_process_death_signal,
    waitpid,
};

use super::restarts::{Lives, Restart};
use crate::AgentError;
use crate::error::system;
use crate::spawn::fork;

/// The exit code of a process whose main thread panicked.
const PANICKED: i32 = 101;

/// The signals that end a service in order.
const ENDS: [Number; 3] = [Number::SIGTERM, Number::SIGINT, Number::SIGHUP];

/// Which process this is, after [`keep_service`].
#[derive(Debug)]
pub enum Service {
    /// The one that serves, with the ends of its predecessor, if there was one. The three signals that end
    /// it in order (SIGTERM, SIGINT, SIGHUP) are blocked.
    Serves(Option<Restart>),
    /// The keeper, with the end of the service, which it is to [end like](super::end_like).
    Ended(ExitStatus),
}

/// Starts the service as a child of this process, and waits for its end; in the child it returns at once.
///
/// A service that is killed, or panics, is started again, unless `restarts` lives in a row before
/// this one were shorter than 10 s too. One that ends in another way, or after a signal to this
/// process, is not. Has to be called before there is a second thread.
///
/// # Errors
///
/// If the system cannot make a process, or this process has several threads.
pub fn keep_service(restarts: u32) -> Result<Service, AgentError> {
    let mut signals = SigSet::from_iter(ENDS);
    signals.add(Number::SIGCHLD);
    signals.thread_block().map_err(system("block signals"))?;
    let descriptor = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(system("handle signals"))?;
    let (mut restart, mut lives) = (None, Lives::default());
    loop {
        let began = Instant::now();
        let keeper = getpid();
        let Some(service) = fork().map_err(system("start the service"))? else {
            let death = set_parent_process_death_signal(Some(Signal::KILL));
            death.map_err(system("watch the keeper"))?;
            if getppid() != Some(keeper) {
                let gone = io::Error::other("the keeper is gone");
                return Err(system("watch the keeper")(gone));
            }
            let children = SigSet::from_iter([Number::SIGCHLD]);
            children
                .thread_unblock()
                .map_err(system("unblock signals"))?;
            return Ok(Service::Serves(restart));
        };
        let (ended, is_told) = wait(service, &descriptor)?;
        let was_killed = ended.signal().is_some() || ended.code() == Some(PANICKED);
        let next = lives.ended(ended, began.elapsed(), restarts);
        let next = next.filter(|_| was_killed && !is_told && restarts > 0);
        let Some((why, pause)) = next else {
            return Ok(Service::Ended(ended));
        };
        if !pause.is_zero() && ends_within(pause, &descriptor)? {
            return Ok(Service::Ended(ExitStatus::from_raw(0)));
        }
        restart = Some(why);
    }
}

/// Waits for the end of the service, and passes signals on to it. Also returns whether there were any.
fn wait(service: Pid, signals: &SignalFd) -> Result<(ExitStatus, bool), AgentError> {
    let mut is_told = false;
    loop {
        let ended = waitpid(Some(service), WaitOptions::NOHANG);
        if let Some((_, status)) = ended.map_err(system("wait for the service"))? {
            return Ok((ExitStatus::from_raw(status.as_raw()), is_told));
        }
        if let Some(number) = next(signals, None)?
            && number != Signal::CHILD
        {
            is_told = true;
            let _ = kill_process(service, number);
        }
    }
}

/// Whether this process is told to end before the time is over.
fn ends_within(time: Duration, signals: &SignalFd) -> Result<bool, AgentError> {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match next(signals, Some(left))? {
            Some(number) if number != Signal::CHILD => return Ok(true),
            _ if left.is_zero() => return Ok(false),
            _ => {}
        }
    }
}

/// The next signal to this process, if one comes in time.
fn next(signals: &SignalFd, within: Option<Duration>) -> Result<Option<Signal>, AgentError> {
    let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], within);
    let info = signals.read_signal();
    let info = info.map_err(system("handle signals"))?;
    Ok(info.and_then(|info| Signal::from_named_raw(info.ssi_signo.cast_signed())))
}
