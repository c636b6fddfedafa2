//! Keeper of a service that has no workers: `rdzv store`.
//!
//! ```text
//!   keeper         the process that the user started: has the listening sockets, passes signals on
//!     └─ service   serves on them; dies with the keeper (parent-death signal)
//! ```
//!
//! If the service is killed, the keeper restarts it with another fork. The sockets stay open in
//! between, so new connections of peers wait in the kernel's queue and are not refused.

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

use super::restarts::{Lives, RestartReason};
use crate::AgentError;
use crate::error::system;
use crate::spawn::fork;

/// Exit code of a process whose main thread panicked.
const PANICKED: i32 = 101;

/// Signals that end a service in order.
const ENDS: [Number; 3] = [Number::SIGTERM, Number::SIGINT, Number::SIGHUP];

/// Process in which [`keep_service`] returned.
#[derive(Debug)]
pub enum Service {
    /// The service, with the exit of its predecessor, if there was one.
    /// The three signals that end the service in order (SIGTERM, SIGINT, SIGHUP) are blocked.
    Serves(Option<RestartReason>),
    /// The keeper, with the exit of the service.
    /// The keeper must [end like](super::end_like) the service.
    Ended(ExitStatus),
}

/// Starts the service as a child of this process, and waits for its exit.
///
/// In the child this function returns immediately. The keeper restarts a service that is killed or
/// panics, unless `restarts` is 0. The keeper stops if more than `restarts` consecutive lives were
/// shorter than 10 s. It does not restart a service that exits in another way, or after a signal to
/// the keeper. Must be called before a second thread exists.
///
/// # Errors
///
/// Returns an error if the system cannot create a process, or if this process has several threads.
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
                let gone = io::Error::other("the keeper has exited");
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

/// Waits for the exit of the service, and passes signals on to the service.
///
/// The result is `true` if this process received a signal.
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

/// Returns `true` if this process receives a signal to exit within `time`.
fn ends_within(time: Duration, signals: &SignalFd) -> Result<bool, AgentError> {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match next(signals, Some(left))? {
            Some(number) if number != Signal::CHILD => return Ok(true),
            _ if left.is_zero() => return Ok(false),
            _ => {}
        }
    }
}

/// Returns the next signal to this process, if one arrives within `within`.
fn next(signals: &SignalFd, within: Option<Duration>) -> Result<Option<Signal>, AgentError> {
    let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], within);
    let info = signals.read_signal();
    let info = info.map_err(system("handle signals"))?;
    Ok(info.and_then(|info| Signal::from_named_raw(info.ssi_signo.cast_signed())))
}
