//! Thread that copies workers' output from their files to the console.
//!
//! The thread sleeps until the kernel reports that a file has changed (inotify), the agent sends a
//! command (a mailbox), or a deadline passes. It has the teed and the retained files of all workers
//! open. It closes them once all writers have exited or are abandoned, and the output to show is
//! copied.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::rank::LocalRank;
use rdzv_event::{Mailbox, Sender, mailbox, poll};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify;
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::collapse::StreamId;
use super::log_reader::LogReader;
use super::output::{Labels, Output};
use super::retained::RetainedFile;

/// Size of one read.
const BUFFER: usize = 64 << 10;

/// Polling interval if the kernel refuses to watch a file.
/// The number of watches is limited per user.
const WITHOUT_WATCHES: Duration = Duration::from_millis(100);

pub(super) enum Command {
    Add(LogReader),
    Retain(RetainedFile),
    /// All writers of the current files have exited or are abandoned.
    /// The thread copies the retained output of these failed workers to the console.
    WritersAreGone(BTreeSet<LocalRank>),
    /// Dropped once all files have been closed.
    Drain(oneshot::Sender<()>),
}

/// Agent's handle of the thread; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Tail {
    thread: Sender<Command>,
    /// Files that are copied; `copied` counts their copied bytes.
    paths: Vec<PathBuf>,
    copied: Arc<AtomicU64>,
}

impl Tail {
    /// Starts the thread; `collapse` turns equal lines of several workers into one.
    pub(super) fn start(collapse: Option<Labels>) -> io::Result<Self> {
        let (thread, mailbox) = mailbox()?;
        let copied = Arc::new(AtomicU64::new(0));
        let copier = Copier {
            copied: Arc::clone(&copied),
            commands: mailbox,
            watches: Watches::new(),
            readers: BTreeMap::new(),
            retained: BTreeMap::new(),
            next: 0,
            waiting: Vec::new(),
            stalls: Stalls::default(),
            closed: false,
        };
        thread::Builder::new()
            .name("tail".to_owned())
            .stack_size(256 << 10)
            .spawn(move || copier.run(Output::new(collapse)))?;
        Ok(Self {
            thread,
            paths: Vec::new(),
            copied,
        })
    }

    /// Returns the number of bytes in the files that have not been copied.
    pub(super) fn unshown(&self) -> u64 {
        let length = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
        let written: u64 = self.paths.iter().map(length).sum();
        written.saturating_sub(self.copied.load(Ordering::Relaxed))
    }

    pub(super) fn send(&mut self, command: Command) {
        if let Command::Add(file) = &command {
            self.paths.push(file.path.clone());
        }
        self.thread.send(command);
    }

    /// Waits until all files have been copied to their ends.
    /// This requires that their writers have exited or are abandoned.
    pub(super) async fn drained(&self) {
        let (answer, drained) = oneshot::channel();
        self.thread.send(Command::Drain(answer));
        let _ = drained.await;
    }
}

struct Copier {
    commands: Mailbox<Command>,
    copied: Arc<AtomicU64>,
    watches: Watches,
    readers: BTreeMap<StreamId, LogReader>,
    retained: BTreeMap<StreamId, RetainedFile>,
    next: StreamId,
    waiting: Vec<oneshot::Sender<()>>,
    stalls: Stalls,
    closed: bool,
}

impl Copier {
    fn run(mut self, mut output: Output) {
        let mut buffer = vec![0; BUFFER];
        loop {
            self.receive(&mut output);
            if self.closed {
                return;
            }
            let mut copied = 0;
            if let Some(reader) = self.with_long_line(Instant::now()) {
                copied = reader.copy(&mut buffer, &mut output);
            } else {
                for reader in self.readers.values_mut().filter(|reader| reader.ready) {
                    copied += reader.copy(&mut buffer, &mut output);
                    if reader.console_release().is_some() {
                        break;
                    }
                }
            }
            output.write_folded(Instant::now());
            self.close_finished(&mut output);
            self.copied.fetch_add(copied as u64, Ordering::Relaxed);
            if copied == 0 {
                self.sleep(&output);
            }
            let now = Instant::now();
            for reader in self.readers.values_mut() {
                reader.flush_if_due(now, &mut output);
            }
            self.trim(now);
        }
    }

    fn receive(&mut self, output: &mut Output) {
        loop {
            let id = self.next;
            match self.commands.try_recv() {
                Ok(Command::Add(reader)) => {
                    self.watches
                        .add(id, &reader.path, inotify::WatchFlags::MODIFY);
                    self.begin(id, reader, output);
                    self.next += 1;
                }
                Ok(Command::Retain(file)) => {
                    self.watches.add(id, &file.reader.path, ONCE);
                    self.retained.insert(id, file);
                    self.next += 1;
                }
                Ok(Command::WritersAreGone(failed)) => self.writers_are_gone(&failed, output),
                Ok(Command::Drain(answer)) => self.waiting.push(answer),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn begin(&mut self, id: StreamId, mut reader: LogReader, output: &mut Output) {
        reader.stream.id = id;
        output.add(&reader.stream);
        self.readers.insert(id, reader);
    }

    fn writers_are_gone(&mut self, failed: &BTreeSet<LocalRank>, output: &mut Output) {
        for (id, retained) in std::mem::take(&mut self.retained) {
            self.watches.remove(id);
            let reader = retained.finish();
            if failed.contains(&reader.stream.ranks.local_rank) {
                self.begin(id, reader, output);
            }
        }
        for reader in self.readers.values_mut() {
            reader.last_round = true;
            reader.ready = true;
        }
    }

    fn close_finished(&mut self, output: &mut Output) {
        let watches = &mut self.watches;
        self.readers.retain(|id, reader| {
            let over = reader.last_round && !reader.ready;
            if over {
                reader.finish(output);
                watches.remove(*id);
            }
            !over
        });
        if self.readers.is_empty() {
            output.write_folded(Instant::now());
        }
        if self.readers.is_empty() && output.is_empty() {
            self.waiting.clear();
        }
    }

    /// Returns the reader that has the console exclusively.
    fn with_long_line(&mut self, now: Instant) -> Option<&mut LogReader> {
        self.readers.values_mut().find(|reader| {
            reader
                .console_release()
                .is_some_and(|deadline| deadline > now)
        })
    }

    fn trim(&mut self, now: Instant) {
        for (id, retained) in &mut self.retained {
            if retained.trim_at.is_some_and(|at| at <= now) {
                // The watch comes first, so that no later write is missed.
                self.watches.add(*id, &retained.reader.path, ONCE);
                retained.trim();
            }
        }
    }

    /// Sleeps until a file changes, a command arrives, or a deadline passes.
    fn sleep(&mut self, output: &Output) {
        let partial = self.readers.values().filter_map(|reader| reader.flush_at);
        let grown = self.retained.values().filter_map(|file| file.trim_at);
        let now = Instant::now();
        let long = self.readers.values().filter_map(LogReader::console_release);
        let due = partial
            .chain(grown)
            .chain(output.deadline())
            .chain(long.filter(|deadline| *deadline > now))
            .min();
        let mut timeout = due.map(|at| at.saturating_duration_since(now));
        if self.watches.refused {
            timeout = Some(timeout.map_or(WITHOUT_WATCHES, |due| due.min(WITHOUT_WATCHES)));
        }
        let mut waited = vec![PollFd::new(&self.commands, PollFlags::IN)];
        if let Some(inotify) = &self.watches.inotify {
            waited.push(PollFd::new(inotify, PollFlags::IN));
        }
        let _ = poll(&mut waited, timeout);
        drop(waited);
        self.commands.drain();
        let begun = now;
        let now = Instant::now();
        if let Some(stall) = due.and_then(|due| self.stalls.after(begun, due, now)) {
            for reader in self.readers.values_mut() {
                reader.postpone(stall);
            }
        }
        for id in self.watches.changed() {
            if let Some(reader) = self.readers.get_mut(&id) {
                reader.ready = true;
            } else if let Some(retained) = self.retained.get_mut(&id) {
                retained.changed(now);
            }
        }
        if self.watches.refused {
            for reader in self.readers.values_mut() {
                reader.ready = true;
            }
            for retained in self.retained.values_mut() {
                retained.changed(now);
            }
        }
    }
}

/// Delay after a deadline that other threads alone do not explain.
const LATE: Duration = Duration::from_millis(50);

/// Limit on consecutive stalls that postpone the beginnings of lines.
const MOST_STALLS: u32 = 3;

/// Counter of waits in which this thread was not scheduled in time.
#[derive(Debug, Default)]
struct Stalls {
    in_a_row: u32,
}

impl Stalls {
    /// Returns the time of a sleep that does not count.
    /// A sleep does not count if it ended long after `due`.
    fn after(&mut self, begun: Instant, due: Instant, now: Instant) -> Option<Duration> {
        // If something else ended the sleep, it proves nothing.
        let late = now.checked_duration_since(due)?;
        if late < LATE {
            self.in_a_row = 0;
            return None;
        }
        self.in_a_row += 1;
        (self.in_a_row <= MOST_STALLS).then(|| now.saturating_duration_since(begun))
    }
}

/// Watch on a file that is trimmed after a delay.
/// It reports only the first change until it is set again, so that a flood does not wake the thread
/// for every line.
const ONCE: inotify::WatchFlags = inotify::WatchFlags::MODIFY.union(inotify::WatchFlags::ONESHOT);

struct Watches {
    inotify: Option<OwnedFd>,
    streams: BTreeMap<i32, StreamId>,
    refused: bool,
}

impl Watches {
    fn new() -> Self {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).ok();
        Self {
            refused: inotify.is_none(),
            inotify,
            streams: BTreeMap::new(),
        }
    }

    fn add(&mut self, id: StreamId, path: &Path, what: inotify::WatchFlags) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        // The kernel has removed a watch that has reported.
        self.streams.retain(|_, stream| *stream != id);
        match inotify::add_watch(inotify, path, what) {
            Ok(watch) => {
                self.streams.insert(watch, id);
            }
            Err(_) => self.refused = true,
        }
    }

    fn remove(&mut self, id: StreamId) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        self.streams.retain(|watch, stream| {
            let gone = *stream == id;
            if gone {
                let _ = inotify::remove_watch(inotify, *watch);
            }
            !gone
        });
    }

    /// Returns the streams whose files have changed since the last call.
    fn changed(&mut self) -> Vec<StreamId> {
        let Some(inotify) = &self.inotify else {
            return Vec::new();
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut changed = Vec::new();
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                    return self.streams.values().copied().collect();
                }
                Ok(event) => changed.extend(self.streams.get(&event.wd())),
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{LATE, MOST_STALLS, Stalls};

    #[test]
    fn a_sleep_that_lasted_much_too_long_does_not_count() {
        let begun = Instant::now();
        let due = begun + Duration::from_millis(150);
        let mut stalls = Stalls::default();
        assert_eq!(stalls.after(begun, due, due + LATE / 2), None);
        let stalled = due + Duration::from_millis(400);
        let whole = Some(Duration::from_millis(550));
        assert_eq!(stalls.after(begun, due, stalled), whole);
    }

    #[test]
    fn stalls_without_an_end_postpone_a_line_a_few_times_only() {
        let begun = Instant::now();
        let due = begun + Duration::from_millis(150);
        let stalled = due + 10 * LATE;
        let mut stalls = Stalls::default();
        for _ in 0..MOST_STALLS {
            assert!(stalls.after(begun, due, stalled).is_some());
        }
        assert_eq!(stalls.after(begun, due, stalled), None);
        // One sleep that ends in time resets the count.
        assert_eq!(stalls.after(begun, due, due), None);
        assert!(stalls.after(begun, due, stalled).is_some());
    }
}
