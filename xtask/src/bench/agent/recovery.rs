//! Time from the death of a worker on two nodes until all workers run again.

use std::net::TcpListener;

use nix::sys::signal::Signal;

use crate::bench::launcher::{Launcher, Running, signal};
use crate::bench::worker::{self, Starts};

/// Number of kills in one launch, and number of restarts.
const KILLS: usize = 3;

/// Number of workers of both nodes together.
const WORLD: usize = 4;

/// Returns the milliseconds from each kill to the start of the last new worker.
pub(super) fn measure(launcher: &Launcher) -> anyhow::Result<Vec<f64>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("starts");
    let starts = Starts::bind(&path)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (endpoint, restarts) = (format!("127.0.0.1:{port}"), KILLS.to_string());
    let flags = [
        ["--nnodes", "2"],
        ["--nproc-per-node", "2"],
        ["--max-restarts", &restarts],
        ["--rdzv-backend", "c10d"],
        ["--rdzv-endpoint", &endpoint],
        ["--rdzv-id", "recovery"],
        ["--local-addr", "127.0.0.1"],
    ]
    .concat();
    let mut command = launcher.play(&flags, "stay")?;
    command.arg(&path);
    let nodes = [Running::start(&mut command)?, Running::start(&mut command)?];
    let mut workers = starts.of_all(WORLD, 0)?;
    let mut times = Vec::new();
    for kill in 0..KILLS {
        // The kills alternate between the nodes.
        let rank = if kill % 2 == 0 { WORLD as u32 - 1 } else { 0 };
        let killed = worker::now();
        signal(workers[&rank].pid, Signal::SIGKILL)?;
        workers = starts.of_all(WORLD, killed)?;
        let last = workers.values().map(|start| start.time).max();
        times.push((last.unwrap_or_default() - killed) as f64 / 1e6);
    }
    for node in nodes {
        node.end()?;
    }
    Ok(times)
}
