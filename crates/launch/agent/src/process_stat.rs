//! The fields of `/proc/PID/stat`.

use std::fmt::Display;
use std::fs;
use std::time::Duration;

/// The unit of processor times in `/proc`, the same on all architectures that we build for: 10 ms.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// State, family and processor time of a process.
///
/// Read from `/proc` rather than by system calls, because in a container a number may be 0: the
/// group or session is one of the outside.
#[derive(Debug)]
pub(crate) struct ProcessStat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Its own processor time and that of its children that have ended.
    pub(crate) cpu: Duration,
}

impl ProcessStat {
    /// Returns the fields of a process (a number, or `self`); `None` if it is gone.
    pub(crate) fn of(process: impl Display) -> Option<Self> {
        let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name in brackets may hold anything; the state comes after it.
        let (_, after_name) = stat.rsplit_once(')')?;
        let words: Vec<&str> = after_name.split_whitespace().collect();
        let number = |index: usize| words.get(index)?.parse().ok();
        let ticks = words.get(11..15)?.iter();
        let ticks: u64 = ticks.filter_map(|word| word.parse::<u64>().ok()).sum();
        Some(Self {
            state: words.first()?.chars().next()?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            cpu: TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)),
        })
    }
}
