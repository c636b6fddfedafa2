//! The record of events.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write as _};

use fastrand::Rng;

use crate::crowd::connected::Crowd;

/// The record, and other state that the agents share.
pub(super) struct Recorder {
    file: BufWriter<File>,
    failed: Option<std::io::Error>,
    /// Source of all random choices.
    pub(super) random: Rng,
    agents: u64,
}

impl Recorder {
    pub(super) fn new(file: &str, seed: u64) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            file: BufWriter::new(File::create(file)?),
            failed: None,
            random: Rng::with_seed(seed),
            agents: 0,
        })
    }

    /// Returns the number of a new agent.
    pub(super) fn another(&mut self) -> u64 {
        self.agents += 1;
        self.agents
    }

    /// Writes an event to the record.
    pub(super) fn write(&mut self, crowd: &Crowd, run: &str, agent: u64, event: &str) {
        let at = crowd.now().mono.since(rdzv_core::time::Mono::ZERO);
        let written = writeln!(self.file, "{} {run} {agent} {event}", at.as_nanos());
        // `end` reports the first error.
        self.failed = self.failed.take().or(written.err());
    }

    pub(super) fn end(mut self) -> Result<(), Box<dyn Error>> {
        if let Some(failed) = self.failed.take() {
            return Err(failed.into());
        }
        Ok(self.file.flush()?)
    }
}
