//! Resources of this process.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

fn entries(of: &str) -> usize {
    fs::read_dir(format!("/proc/self/{of}")).map_or(0, Iterator::count)
}

/// Returns the numbers of threads and descriptors, and the bytes of memory.
pub(crate) fn measured() -> Value {
    json!({ "threads": entries("task"), "descriptors": entries("fd"), "bytes": bytes() })
}

/// Returns the anonymous memory of this process, without shared pages.
fn bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kibibytes.map_or(0, |number| number.parse().unwrap_or(0)) * 1024
}

/// Waits until there are at most this many threads, or the time is over.
/// Threads end some time after their work, and no event reports that.
pub(crate) fn settle(threads: usize, within: Duration) {
    let begun = Instant::now();
    while entries("task") > threads && begun.elapsed() < within {
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Returns the number of threads.
pub(crate) fn threads() -> usize {
    entries("task")
}

/// Returns the processor time of this process, including its ended threads.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Returns the processor use of the idle worker during this time, in cores.
pub(crate) fn idle(measured: Duration) -> f64 {
    let (begun, before) = (Instant::now(), used());
    // This sleep is the measurement itself, not a wait for an event.
    std::thread::sleep(measured);
    (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64()
}
