//! Every event of a run, appended to a file: one JSON object per line, one write per line.
//!
//! A thread of its own does the writing, so that a file system that stalls (or a named pipe that
//! nobody reads) holds up no supervision.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use tracing::warn;

use super::json_events::record;
use super::sink::{EventSink, RunFacts};
use crate::AgentEvent;

/// Number of lines that may wait to be written; further ones are lost, and counted.
const MOST_WAITING: usize = 4096;

/// Time that the end of the run waits for the last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Appends every event to a file.
#[derive(Debug)]
pub struct EventFile {
    facts: RunFacts,
    path: PathBuf,
    lines: Option<SyncSender<String>>,
    /// Ends when everything is written.
    written: Receiver<()>,
    lost: u64,
}

impl EventFile {
    /// Opens the file, or makes it; what is in it stays.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened for writing (a named pipe: if it has no reader), or no thread
    /// can be had.
    pub fn open(path: &Path, facts: RunFacts) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            // Opening a pipe without a reader fails instead of waiting for one.
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        rustix::io::ioctl_fionbio(&file, false)?;
        let (lines, waiting) = sync_channel::<String>(MOST_WAITING);
        let (done, written) = channel();
        let shown = path.to_owned();
        thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || {
                write_out(&mut file, &shown, &waiting);
                drop(done);
            })?;
        Ok(Self {
            facts,
            path: path.to_owned(),
            lines: Some(lines),
            written,
            lost: 0,
        })
    }
}

fn write_out(file: &mut File, path: &Path, lines: &Receiver<String>) {
    let mut failed = false;
    for line in lines {
        // A full disk may have room again later, so every line is tried; reported once.
        if let Err(error) = file.write_all(line.as_bytes())
            && !failed
        {
            failed = true;
            warn!("write events to {}: {error}", path.display());
        }
    }
}

impl EventSink for EventFile {
    fn record(&mut self, event: &AgentEvent) {
        let line = format!("{}\n", record(&self.facts, event));
        if let Some(lines) = &self.lines
            && lines.try_send(line).is_err()
        {
            self.lost += 1;
        }
    }

    fn finish(&mut self) {
        self.lines = None;
        if self.written.recv_timeout(FLUSH_TIMEOUT)
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            warn!(
                "{} took no events for {} s: the last ones may be missing",
                self.path.display(),
                FLUSH_TIMEOUT.as_secs()
            );
        }
        if self.lost > 0 {
            warn!(
                "{} events are missing in {}, which was too slow",
                self.lost,
                self.path.display()
            );
        }
    }
}
