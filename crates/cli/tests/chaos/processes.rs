//! Processes: those that carry a marker, and signals that cannot hit another one.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Every process of a node has this variable, with a value of the node's own.
pub(crate) const MARKER: &str = "RDZV_CHAOS_MARKER";

/// A descriptor of a process; `None` if it has ended and is collected.
pub(crate) fn open(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Signals a process; false if it has ended.
pub(crate) fn signal(process: impl AsFd, signal: Signal) -> bool {
    !ends_within(&process, Duration::ZERO) && pidfd_send_signal(process, signal).is_ok()
}

/// Waits for the end of a process.
pub(crate) fn ends_within(process: impl AsFd, limit: Duration) -> bool {
    let timeout = Timespec::try_from(limit).unwrap();
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut watched, Some(&timeout)).unwrap() > 0
}

/// Processes that carry a marker, with their command lines. Zombies have no environment, so they do
/// not count.
pub(crate) fn marked(marker: &str) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if marker_of(pid).as_deref() == Some(marker) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.truncate(
                line.char_indices()
                    .nth(200)
                    .map_or(line.len(), |(at, _)| at),
            );
            found.push((pid, line));
        }
    }
    found
}

/// The marker that a process carries.
pub(crate) fn marker_of(pid: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let text = str::from_utf8(variable).ok()?;
        let value = text.strip_prefix(MARKER)?.strip_prefix('=')?;
        Some(value.to_owned())
    })
}

/// The first child of a process: of a keeper it is the agent.
pub(crate) fn first_child(pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Ends everything that carries a marker; what begins meanwhile, too.
pub(crate) fn end_all(marker: &str) {
    loop {
        let left = marked(marker);
        if left.is_empty() {
            return;
        }
        for (pid, _) in left {
            if let Some(process) = open(pid) {
                // It may have become another one since it was found.
                if marker_of(pid).as_deref() == Some(marker) {
                    signal(&process, Signal::KILL);
                }
            }
        }
    }
}
