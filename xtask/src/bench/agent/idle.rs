//! What a launcher takes while its workers do nothing.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::processes::{launcher_processes, processor_time, proportional_size};
use super::{Launcher, STEP_TIMEOUT, WORKERS, text};
use crate::bench::worker::Start;

/// What follows a start is not part of it.
const SETTLE: Duration = Duration::from_secs(2);

const WATCHED: Duration = Duration::from_secs(20);

pub(super) struct Idle {
    /// Of one processor.
    pub(super) per_cent: f64,
    pub(super) mebibytes: f64,
}

pub(super) fn measure(launcher: &Launcher) -> anyhow::Result<Idle> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("starts");
    let socket = UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(STEP_TIMEOUT))?;
    let (logs, workers) = (folder.path().join("logs"), WORKERS.to_string());
    let flags = [
        "--nproc-per-node",
        &workers,
        "-t",
        "3",
        "--log-dir",
        text(&logs)?,
    ];
    let launch = launcher.start(&flags, &["stay", text(&path)?], Stdio::null())?;
    let mut pids = BTreeSet::new();
    let mut message = [0; 200];
    while pids.len() < WORKERS as usize {
        let length = socket
            .recv(&mut message)
            .context("the workers did not start")?;
        pids.insert(
            Start::read(&message[..length])
                .context("a worker said nonsense")?
                .pid,
        );
    }
    // The time that passes is what is measured.
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
