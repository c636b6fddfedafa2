//! All processes of one launch.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::pids;

const VARIABLE: &str = "RDZV_TEST_MARKER";

/// An environment variable that marks a program and all its descendants.
/// Each marker has a different value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker(String);

impl Default for Marker {
    fn default() -> Self {
        Self::new()
    }
}

impl Marker {
    /// Creates a marker that no other launch has.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(format!("{}-{number}", std::process::id()))
    }

    /// Returns the marker that a process carries.
    pub fn of(pid: i32) -> Option<Self> {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).find_map(|variable| {
            let text = str::from_utf8(variable).ok()?;
            let value = text.strip_prefix(VARIABLE)?.strip_prefix('=')?;
            Some(Self(value.to_owned()))
        })
    }

    /// Marks a program and every process that it starts.
    pub fn mark(&self, command: &mut Command) {
        command.env(VARIABLE, &self.0);
    }

    /// Returns the processes that carry the marker, with their command lines.
    /// A command line has at most 200 characters. Zombies have no environment, so they do not
    /// count.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if Self::of(pid).as_ref() == Some(self) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                found.push((pid, line.chars().take(200).collect()));
            }
        }
        found
    }

    /// Waits until no process but `except` carries the marker.
    /// Returns the processes that are left at the deadline.
    pub fn left_at(&self, deadline: Instant, except: Option<i32>) -> Vec<(i32, String)> {
        loop {
            let others = || {
                let mut left = self.processes();
                left.retain(|(pid, _)| Some(*pid) != except);
                left
            };
            let mut left = others();
            if left.is_empty() {
                // The first listing may miss a process whose parent forked during it and then died.
                left = others();
            }
            let Some((first, _)) = left.first() else {
                return left;
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            if !pids::ends_within(*first, remaining) {
                return left;
            }
        }
    }

    /// Kills every process that carries the marker.
    ///
    /// This includes processes that start during the call. The processes that are found together
    /// are stopped before the first is killed, so none of them reports the death of another. For
    /// other nodes, this looks like the sudden end of a whole node.
    pub fn kill_all(&self) {
        loop {
            let opened = |(pid, _)| pids::open(pid).map(|process| (pid, process));
            let mut left: Vec<_> = self.processes().into_iter().filter_map(opened).collect();
            // In the meantime, the process id may have been reused.
            left.retain(|(pid, _)| Self::of(*pid).as_ref() == Some(self));
            if left.is_empty() {
                return;
            }
            for signal in [Signal::STOP, Signal::KILL] {
                for (_, process) in &left {
                    pids::signal(process, signal);
                }
            }
            for (_, process) in &left {
                pids::closes_within(process, Duration::from_millis(100));
            }
        }
    }
}
