//! Processor time of another process.

use std::fs;
use std::io;
use std::time::Duration;

/// Returns the processor time of all live threads of a process.
pub(crate) fn spent(pid: u32) -> io::Result<Duration> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let line = fs::read_to_string(task?.path().join("schedstat"))?;
        let running = line.split(' ').next().and_then(|word| word.parse().ok());
        total += running.unwrap_or(0_u64);
    }
    Ok(Duration::from_nanos(total))
}
