//! Resources of a launcher while its workers do nothing.

use std::thread;
use std::time::{Duration, Instant};

use super::WORKERS;
use crate::bench::launcher::{Launcher, Running, labelled};
use crate::bench::processes::{launcher_processes, processor_time, proportional_size};
use crate::bench::worker::Starts;

/// Time after the start that is not measured.
const SETTLE: Duration = Duration::from_secs(2);

const WATCHED: Duration = Duration::from_secs(20);

pub(super) struct Idle {
    /// Per cent of one processor.
    pub(super) per_cent: f64,
    pub(super) mebibytes: f64,
}

pub(super) fn measure(launcher: &Launcher) -> anyhow::Result<Idle> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("starts");
    let starts = Starts::bind(&path)?;
    let flags = labelled(WORKERS, folder.path());
    let launch = Running::start(launcher.play(&flags, "stay")?.arg(&path))?;
    let started = starts.of_all(WORKERS as usize, 0)?;
    let pids = started.values().map(|start| start.pid).collect();
    // The measurement needs time to pass.
    thread::sleep(SETTLE);
    let processes = launcher_processes(launch.pid(), &pids);
    let (before, start) = (processor_time(&processes)?, Instant::now());
    thread::sleep(WATCHED);
    let used = processor_time(&processes)? - before;
    let per_cent = used as f64 / start.elapsed().as_nanos() as f64 * 100.0;
    let mebibytes = proportional_size(&processes)?;
    launch.end()?;
    Ok(Idle {
        per_cent,
        mebibytes,
    })
}
