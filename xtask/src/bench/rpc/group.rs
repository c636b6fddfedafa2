//! Group of workers that execute one command per line and answer with JSON.

use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::bench::peer::{Peer, Server};

/// Worker processes of one group by rank, and their store.
///
/// Dropping this value kills all of them.
pub(super) struct Group {
    workers: Vec<Peer>,
    _store: Server,
}

impl Group {
    /// Starts `world_size` workers, and waits until all of them are ready.
    ///
    /// Each worker has the environment variables that an agent sets.
    pub(super) fn start(
        program: impl Fn() -> Command,
        store: Server,
        world_size: u32,
    ) -> anyhow::Result<Self> {
        let workers = (0..world_size).map(|rank| {
            let mut command = program();
            command
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", store.port.to_string())
                .env("TORCHELASTIC_USE_AGENT_STORE", "True")
                .env("WORLD_SIZE", world_size.to_string())
                .env("RANK", rank.to_string());
            Peer::start(&mut command)
        });
        let mut group = Self {
            workers: workers.collect::<anyhow::Result<_>>()?,
            _store: store,
        };
        group.answers().context("a worker did not become ready")?;
        Ok(group)
    }

    fn answers(&mut self) -> anyhow::Result<Vec<Value>> {
        let answer = |(rank, worker): (usize, &mut Peer)| {
            let answer = worker.answer();
            answer.with_context(|| format!("rank {rank} failed"))
        };
        self.workers.iter_mut().enumerate().map(answer).collect()
    }

    /// Sends the same command to all ranks, and returns their answers.
    pub(super) fn tell_all(&mut self, what: &str) -> anyhow::Result<Vec<Value>> {
        for worker in &mut self.workers {
            worker.tell(what)?;
        }
        self.answers()
            .with_context(|| format!("no answer from all workers to '{what}'"))
    }

    /// Sends a command to rank 0 alone, and returns its answer.
    pub(super) fn tell_first(&mut self, what: &str) -> anyhow::Result<Value> {
        let answer = self.workers[0].ask(what);
        answer.with_context(|| format!("no answer from rank 0 to '{what}'"))
    }

    /// Waits for the workers to exit. Fails at the first exit code other than 0.
    pub(super) fn end(self) -> anyhow::Result<()> {
        for (rank, worker) in self.workers.into_iter().enumerate() {
            let status = worker.end()?;
            ensure!(status.success(), "rank {rank} ended with {status}");
        }
        Ok(())
    }
}
