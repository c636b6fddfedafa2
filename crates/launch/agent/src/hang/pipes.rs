//! Named pipes that workers write to.
//!
//! The agent opens each pipe for writing too, so that the pipe never reaches its end. The pipe
//! therefore does not stay readable after the last worker has closed it. While the agent has the
//! pipe open, writers neither block when they open the pipe nor get SIGPIPE.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdzv_agent_proto::hang::line_splitter::{LineSplitter, SplitLine};
use rdzv_core::rank::LocalRank;
use rdzv_event::{Event, EventFlags, Poller};
use rustix::buffer::spare_capacity;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::io::{Errno, read};
use tokio::time::{Instant, sleep_until};

use crate::exits::awaitable;

/// Number of bytes per read: all that a pipe holds by default.
const BATCH: usize = 64 * 1024;

/// Number of reads of all pipes before they count as empty.
const MOST_ROUNDS: usize = 32;

const EVENTS: usize = 64;

/// Shortest time between two readings of all pipes, if a line causes one.
/// Many workers that report each step then wake up the agent only 10 times a second. The agent
/// reads a line after a pause immediately, so that the last step is recorded even if the agent is
/// killed.
const GATHER: Duration = Duration::from_millis(100);

/// Writer of a pipe, and the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// All workers: timers of the watchdog.
    Watchdog,
    /// One worker: heartbeats.
    Heartbeat(LocalRank),
}

/// One pipe; dropping this value removes its file.
#[derive(Debug)]
struct Pipe {
    source: Source,
    path: PathBuf,
    descriptor: OwnedFd,
    lines: LineSplitter,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[derive(Debug)]
pub(crate) struct Pipes {
    poller: Poller,
    open: Vec<Pipe>,
    buffer: Vec<u8>,
    /// Time of the next reading, if a pipe can be read.
    due: Option<Instant>,
    /// Time before which no reading begins.
    pause_end: Instant,
}

impl Pipes {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            open: Vec::new(),
            buffer: Vec::new(),
            due: None,
            pause_end: Instant::now(),
        })
    }

    /// Creates a pipe.
    /// Replaces a leftover pipe, and fails if any other file exists at `path`.
    pub(crate) fn make(&mut self, source: Source, path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(there) if there.file_type().is_fifo() => fs::remove_file(path)?,
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "the path exists and is not a named pipe",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let everybody = Mode::from_raw_mode(0o666);
        mknodat(CWD, path, FileType::Fifo, everybody, 0)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let descriptor = match open(path, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(errno) => {
                let _ = fs::remove_file(path);
                return Err(errno.into());
            }
        };
        let pipe = Pipe {
            source,
            path: path.to_owned(),
            descriptor,
            lines: LineSplitter::default(),
        };
        let index = u64::try_from(self.open.len()).unwrap_or(u64::MAX);
        self.poller.add(&pipe.descriptor, index, EventFlags::IN)?;
        self.open.push(pipe);
        Ok(())
    }

    pub(crate) fn path(&self, source: Source) -> Option<&Path> {
        let pipe = self.open.iter().find(|pipe| pipe.source == source)?;
        Some(&pipe.path)
    }

    /// Waits until a worker writes, and returns the lines.
    /// Must be called inside the runtime.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<(Source, SplitLine)>> {
        if self.due.is_none() {
            // The runtime knows the descriptor only here. Otherwise each line that a worker writes
            // during the pause would wake up this thread.
            let _ = awaitable(self.poller.as_fd())?.readable().await?;
            self.due = Some(self.pause_end);
        }
        if let Some(due) = self.due {
            sleep_until(due).await;
        }
        Ok(self.take_all())
    }

    /// Returns the lines that can be read without waiting.
    pub(crate) fn take_all(&mut self) -> Vec<(Source, SplitLine)> {
        (self.due, self.pause_end) = (None, Instant::now() + GATHER);
        let mut events = Vec::with_capacity(EVENTS);
        match self.poller.wait(&mut events, Some(Duration::ZERO)) {
            Ok(()) => self.take(&events),
            Err(_) => Vec::new(),
        }
    }

    /// Drops everything that can be read, including incomplete lines.
    pub(crate) fn forget(&mut self) {
        // Bounded, because a process that is not a worker of this run may be writing without a
        // limit.
        for _ in 0..MOST_ROUNDS {
            if self.take_all().is_empty() {
                break;
            }
        }
        for pipe in &mut self.open {
            pipe.lines = LineSplitter::default();
        }
    }

    fn take(&mut self, events: &[Event]) -> Vec<(Source, SplitLine)> {
        let mut found = Vec::new();
        for event in events {
            let Event { data, .. } = *event;
            let index = usize::try_from(data.u64()).unwrap_or(usize::MAX);
            let Some(pipe) = self.open.get_mut(index) else {
                continue;
            };
            self.buffer.clear();
            self.buffer.reserve(BATCH);
            match read(&pipe.descriptor, spare_capacity(&mut self.buffer)) {
                Ok(_) => {
                    let lines = pipe.lines.feed(&self.buffer);
                    found.extend(lines.into_iter().map(|line| (pipe.source, line)));
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // The pipe cannot be read, now or later.
                Err(_) => self.poller.remove(&pipe.descriptor),
            }
        }
        // Heartbeats are short, so this frees the memory that a flood needed.
        self.buffer = Vec::new();
        found
    }
}
