//! A group of workers that are told what to do, line by line, and answer with JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::bench::server::Server;

/// The workers of one group, each a process, and the store that they meet at. All end with this.
pub(super) struct Group {
    workers: Vec<Worker>,
    _store: Server,
}

impl Group {
    /// Starts as many workers, each with the environment that an agent gives to its workers. Returns
    /// when all have loaded what they need.
    pub(super) fn start(
        program: impl Fn() -> Command,
        store: Server,
        world_size: u32,
    ) -> anyhow::Result<Self> {
        let workers = (0..world_size).map(|rank| {
            let mut command = program();
            command
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", store.port().to_string())
                .env("TORCHELASTIC_USE_AGENT_STORE", "True")
                .env("WORLD_SIZE", world_size.to_string())
                .env("RANK", rank.to_string());
            Worker::start(rank, &mut command)
        });
        let mut group = Self {
            workers: workers.collect::<anyhow::Result<_>>()?,
            _store: store,
        };
        for worker in &mut group.workers {
            worker.answer().context("it did not become ready")?;
        }
        Ok(group)
    }

    /// What each rank answers when all are told the same at the same time.
    pub(super) fn tell_all(&mut self, what: &str) -> anyhow::Result<Vec<Value>> {
        for worker in &mut self.workers {
            worker.tell(what)?;
        }
        let answers = self.workers.iter_mut().map(Worker::answer);
        answers
            .collect::<anyhow::Result<_>>()
            .with_context(|| format!("it was told to '{what}'"))
    }

    /// What rank 0 answers; nobody else is told anything.
    pub(super) fn tell_first(&mut self, what: &str) -> anyhow::Result<Value> {
        let first = &mut self.workers[0];
        first.tell(what)?;
        first
            .answer()
            .with_context(|| format!("it was told to '{what}'"))
    }

    /// Waits until all have ended by themselves, and all of them well.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        for worker in &mut self.workers {
            let status = worker.process.wait()?;
            ensure!(status.success(), "rank {} ended with {status}", worker.rank);
        }
        Ok(())
    }
}

struct Worker {
    rank: u32,
    process: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(rank: u32, command: &mut Command) -> anyhow::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {:?}", command.get_program()))?;
        Ok(Self {
            rank,
            words: process.stdin.take().expect("it is piped"),
            answers: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
        })
    }

    fn tell(&mut self, what: &str) -> anyhow::Result<()> {
        writeln!(self.words, "{what}").with_context(|| format!("rank {} is gone", self.rank))
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line)
            .with_context(|| format!("rank {} answered '{}'", self.rank, line.trim()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
