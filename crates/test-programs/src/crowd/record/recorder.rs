//! The record, and what else the program says in the end.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write as _};

use fastrand::Rng;
use serde_json::json;

use crate::crowd::connected::Crowd;

/// The record, and everything that all agents share.
pub(super) struct Recorder {
    file: BufWriter<File>,
    failed: Option<std::io::Error>,
    /// All that is random.
    pub(super) random: Rng,
    agents: u64,
    pub(super) late: u64,
    reasons: BTreeMap<String, u64>,
}

impl Recorder {
    pub(super) fn new(file: &str, seed: u64) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            file: BufWriter::new(File::create(file)?),
            failed: None,
            random: Rng::with_seed(seed),
            agents: 0,
            late: 0,
            reasons: BTreeMap::new(),
        })
    }

    /// The number of another agent.
    pub(super) fn another(&mut self) -> u64 {
        self.agents += 1;
        self.agents
    }

    /// Writes an event down.
    pub(super) fn write(&mut self, crowd: &Crowd, run: &str, agent: u64, event: &str) {
        let at = crowd.now().mono.since(rdzv_core::time::Mono::ZERO);
        let written = writeln!(self.file, "{} {run} {agent} {event}", at.as_nanos());
        // It is told in the end.
        self.failed = self.failed.take().or(written.err());
    }

    /// An agent was told why its round does not hold any more.
    pub(super) fn reason(&mut self, reason: &str) {
        // Names of nodes, and numbers, make no difference.
        let is_name = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit());
        let words: Vec<&str> = reason.split(' ').filter(is_name).collect();
        *self.reasons.entry(words.join(" ")).or_default() += 1;
    }

    pub(super) fn end(mut self) -> Result<(), Box<dyn Error>> {
        if let Some(failed) = self.failed.take() {
            return Err(failed.into());
        }
        self.file.flush()?;
        let (agents, late, reasons) = (self.agents, self.late, &self.reasons);
        println!(
            "{}",
            json!({"agents": agents, "late": late, "reasons": reasons})
        );
        Ok(())
    }
}
