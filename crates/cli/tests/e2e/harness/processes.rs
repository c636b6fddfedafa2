//! Processes: signalling them, waiting for their end, finding what is left.

use std::fs;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::MARKER;

pub(crate) fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Waits for the end of a process, which need not be a child.
pub(crate) fn ends_within(pid: i32, limit: Duration) -> bool {
    let Ok(pidfd) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else {
        return true;
    };
    let timeout = Timespec::try_from(limit).unwrap();
    let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut watched, Some(&timeout)).unwrap() > 0
}

/// Processes that carry the marker, with their command lines. Zombies have no environment, so they
/// do not count.
pub(super) fn processes(marker: &str) -> Vec<(i32, String)> {
    let wanted = format!("{MARKER}={marker}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let carries = environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted.as_bytes());
        if carries {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    found
}
