//! Processes by their ids: signals, exits, states and children.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::DEADLINE;

/// Opens a descriptor of a process; `None` if it has exited and is reaped.
pub fn open(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Signals the process of a descriptor; `false` if it has exited.
pub fn signal(process: impl AsFd, signal: Signal) -> bool {
    !closes_within(&process, Duration::ZERO) && pidfd_send_signal(process, signal).is_ok()
}

/// Waits for the exit of a descriptor's process.
/// `false` if the process does not exit within the limit.
pub fn closes_within(process: impl AsFd, limit: Duration) -> bool {
    let timeout = Timespec::try_from(limit).unwrap();
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut watched, Some(&timeout)).unwrap() > 0
}

/// Signals a process, which must exist.
pub fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Waits for the exit of a process, which need not be a child.
/// `false` if the process does not exit within the limit.
pub fn ends_within(pid: i32, limit: Duration) -> bool {
    open(pid).is_none_or(|process| closes_within(process, limit))
}

/// Returns a process's state letter; `None` if it has exited and is reaped.
pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.chars().next()
}

/// Waits until a process is in this state.
#[track_caller]
pub fn wait_for_state(pid: i32, letter: char) {
    // The kernel notifies parents only, so the state is polled.
    let deadline = Instant::now() + DEADLINE;
    while state(pid) != Some(letter) {
        assert!(Instant::now() < deadline, "{pid} is {:?}", state(pid));
        assert!(
            !ends_within(pid, Duration::from_millis(2)),
            "{pid} has ended"
        );
    }
}

/// Returns the guard of a launch with this keeper.
pub fn guard(keeper: i32) -> Option<i32> {
    first_child(keeper)
}

/// Returns the agent of a launch with this keeper.
pub fn agent(keeper: i32) -> Option<i32> {
    first_child(guard(keeper)?)
}

/// Waits for the agent of a launch with this keeper.
pub fn await_agent(keeper: i32) -> i32 {
    loop {
        if let Some(agent) = agent(keeper) {
            return agent;
        }
        // No event announces the start of a process, so this loop polls.
        assert!(!ends_within(keeper, Duration::from_millis(1)));
    }
}

fn first_child(pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
