//! What a process has of the system.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

fn entries(of: &str) -> usize {
    fs::read_dir(format!("/proc/self/{of}")).map_or(0, Iterator::count)
}

/// Threads, descriptors, and bytes of memory that are in use.
pub(crate) fn measured() -> Value {
    json!({ "threads": entries("task"), "descriptors": entries("fd"), "bytes": bytes() })
}

/// The memory that is this process's own, shared pages not counted.
fn bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kibibytes.map_or(0, |number| number.parse().unwrap_or(0)) * 1024
}

/// Waits until there are no more threads than before. They end by themselves, and nothing tells when.
pub(crate) fn settle(threads: usize, within: Duration) {
    let begun = Instant::now();
    while entries("task") > threads && begun.elapsed() < within {
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// How many threads there are.
pub(crate) fn threads() -> usize {
    entries("task")
}

/// How long this process has been running on a processor, with threads that have ended.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// How much of a core is used while the worker does nothing for so long.
pub(crate) fn idle(measured: Duration) -> f64 {
    let (begun, before) = (Instant::now(), used());
    // This is the measurement itself; nothing is waited for.
    std::thread::sleep(measured);
    (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64()
}
