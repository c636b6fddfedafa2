//! File with the events of a run: one JSON object and one write per line.
//!
//! A separate thread writes the lines. A stalled file system, or a named pipe that is not read,
//! therefore does not delay supervision. If too many lines wait, events are lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use rdzv_core::quantity::count;
use tracing::warn;

use super::json_events::record;
use super::sink::{EventSink, RunFacts};
use crate::AgentEvent;

/// Limit on the lines that wait; further lines are lost and counted.
const MOST_WAITING: usize = 4096;

/// Maximum time that the end of the run waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Sink that appends the events of a run to a file.
#[derive(Debug)]
pub struct EventFile {
    facts: RunFacts,
    path: PathBuf,
    lines: Option<SyncSender<String>>,
    /// Channel that closes once everything is written.
    written: Receiver<()>,
    lost: u64,
}

impl EventFile {
    /// Opens or creates the file, and appends to existing content.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened for writing, or if no thread can be started. A
    /// named pipe without a reader cannot be opened.
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
        // A full disk may have room again later, so each line is tried. The error is reported once.
        if let Err(error) = file.write_all(line.as_bytes())
            && !failed
        {
            failed = true;
            warn!("cannot write events to {}: {error}", path.display());
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
                "{} accepted no events for {} s: the last events may be missing",
                self.path.display(),
                FLUSH_TIMEOUT.as_secs()
            );
        }
        if self.lost > 0 {
            warn!(
                "lost {} for {}, because writing to it was too slow",
                count(self.lost, "event"),
                self.path.display()
            );
        }
    }
}
