//! Fields of `/proc/PID/stat` and `/proc/PID/schedstat`.

use std::fmt::Display;
use std::fs;
use std::time::Duration;

/// Unit of processor times in `/proc`: 10 ms on all supported architectures.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// State, parent, group, session and processor time of a process.
///
/// The values come from `/proc`, not from system calls, because an id may be 0 in a container.
/// The group or session is then outside the container.
#[derive(Debug)]
pub(crate) struct ProcessStat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Processor time of the process and of its reaped children.
    pub(crate) cpu: Duration,
}

impl ProcessStat {
    /// Returns the fields of a process (a number, or `self`).
    /// `None` if there is no such process.
    pub(crate) fn of(process: impl Display) -> Option<Self> {
        let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name in brackets may contain any character; the state comes after it.
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

/// Returns the time for which a main thread has run or waited for a processor.
/// `None` if the kernel does not count it.
pub(crate) fn runnable(pid: u32) -> Option<Duration> {
    let times = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let mut times = times.split(' ').map(|nanos| nanos.parse::<u64>().ok());
    let (ran, waited) = (times.next()??, times.next()??);
    Some(Duration::from_nanos(ran.saturating_add(waited)))
}
