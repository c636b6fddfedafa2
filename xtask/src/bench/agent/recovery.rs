//! Two nodes, one dead worker: how long until all workers of both run again.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;

use super::{Launcher, STEP_TIMEOUT, signal, text};
use crate::bench::worker::{self, Start};

/// How often a worker is killed in one launch, and how many restarts there are.
const KILLS: usize = 3;

/// Workers of both nodes together.
const WORLD: usize = 4;

/// Milliseconds from each kill to the start of the last new worker.
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
    let part = ["stay", text(&path)?];
    let nodes = [
        launcher.start(&flags, &part, Stdio::null())?,
        launcher.start(&flags, &part, Stdio::null())?,
    ];
    let mut workers = starts.of_all(0)?;
    let mut times = Vec::new();
    for kill in 0..KILLS {
        // Now of one node, now of the other.
        let rank = if kill % 2 == 0 { WORLD as u32 - 1 } else { 0 };
        let killed = worker::now();
        signal(workers[&rank].pid, Signal::SIGKILL)?;
        workers = starts.of_all(killed)?;
        let last = workers.values().map(|start| start.time).max();
        times.push((last.unwrap_or_default() - killed) as f64 / 1e6);
    }
    for node in nodes {
        node.end()?;
    }
    Ok(times)
}

/// Where workers say that they have started.
struct Starts(UnixDatagram);

impl Starts {
    fn bind(path: &std::path::Path) -> anyhow::Result<Self> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_read_timeout(Some(STEP_TIMEOUT))?;
        Ok(Self(socket))
    }

    /// By rank, once each has started after this time.
    fn of_all(&self, after: u128) -> anyhow::Result<BTreeMap<u32, Start>> {
        let mut started = BTreeMap::new();
        let mut message = [0; 200];
        while started.len() < WORLD {
            let length = self.0.recv(&mut message).with_context(|| {
                format!("only {} of {WORLD} workers have started", started.len())
            })?;
            let start = Start::read(&message[..length]).context("a worker said nonsense")?;
            if start.time > after {
                started.insert(start.rank, start);
            }
        }
        ensure!(started.len() == WORLD, "there are workers beyond {WORLD}");
        Ok(started)
    }
}
