//! The thread that copies workers' output from their files to the console.
//!
//! It sleeps until the kernel reports that a file has changed (inotify) or the agent sends a
//! command (a mailbox). It holds the files of all workers; a worker's files are let go when they have
//! been copied to their end after the last writer has gone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::rank::LocalRank;
use rdzv_event::{Mailbox, Sender, mailbox, poll};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify;
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::kept::KeptFile;
use super::output::{Labels, Output};
use super::source::{Source, TailedFile};

/// How much is read at once.
const BUFFER: usize = 64 << 10;

/// How often files are looked at where the kernel refuses to watch them: the number of watches is
/// limited per user.
const WITHOUT_WATCHES: Duration = Duration::from_millis(100);

/// A command of the agent to the thread.
enum Command {
    Add(TailedFile),
    Keep(KeptFile),
    /// And what was kept of these workers is to be shown.
    WritersAreGone(BTreeSet<LocalRank>),
    /// Answer when all files have been let go.
    Drain(oneshot::Sender<()>),
}

/// The agent's end of the thread. The thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct Tail(Sender<Command>);

impl Tail {
    /// Starts the thread. With `collapse`, equal lines of several workers become one.
    pub(super) fn start(collapse: Option<Labels>) -> io::Result<Self> {
        let (commands, mailbox) = mailbox()?;
        let copier = Copier {
            commands: mailbox,
            watches: Watches::new(),
            sources: BTreeMap::new(),
            kept: BTreeMap::new(),
            next: 0,
            waiting: Vec::new(),
            closed: false,
        };
        thread::Builder::new()
            .name("tail".to_owned())
            .stack_size(256 << 10)
            .spawn(move || copier.run(Output::new(collapse)))?;
        Ok(Self(commands))
    }

    /// Copies a file from its beginning on.
    pub(super) fn add(&self, file: TailedFile) {
        self.0.send(Command::Add(file));
    }

    /// Keeps the end of a file.
    pub(super) fn keep(&self, file: KeptFile) {
        self.0.send(Command::Keep(file));
    }

    /// Nobody writes any more into any of the files that were given so far. What was kept of the
    /// workers that `failed` goes to the console.
    pub(super) fn writers_are_gone(&self, failed: BTreeSet<LocalRank>) {
        self.0.send(Command::WritersAreGone(failed));
    }

    /// Waits until all files have been copied to their ends, which needs that their writers are
    /// gone.
    pub(super) async fn drained(&self) {
        let (answer, drained) = oneshot::channel();
        self.0.send(Command::Drain(answer));
        let _ = drained.await;
    }
}

/// The thread's own state.
struct Copier {
    commands: Mailbox<Command>,
    watches: Watches,
    sources: BTreeMap<u64, Source>,
    kept: BTreeMap<u64, KeptFile>,
    next: u64,
    waiting: Vec<oneshot::Sender<()>>,
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
            let mut copied = false;
            if let Some(source) = self.with_long_line(Instant::now()) {
                copied = source.copy(&mut buffer, &mut output);
            } else {
                for source in self.sources.values_mut().filter(|source| source.ready) {
                    copied |= source.copy(&mut buffer, &mut output);
                    if source.has_console_until().is_some() {
                        break;
                    }
                }
            }
            output.write_folded(Instant::now());
            self.let_go(&mut output);
            if !copied {
                self.sleep(&output);
            }
            let now = Instant::now();
            for source in self.sources.values_mut() {
                source.give_out_if_due(now, &mut output);
            }
            self.trim(now);
        }
    }

    fn receive(&mut self, output: &mut Output) {
        loop {
            let number = self.next;
            match self.commands.try_recv() {
                Ok(Command::Add(file)) => {
                    self.watches
                        .add(number, &file.path, inotify::WatchFlags::MODIFY);
                    self.sources
                        .insert(number, Source::new(number, file, output));
                    self.next += 1;
                }
                Ok(Command::Keep(file)) => {
                    self.watches.add(number, &file.shown.path, ONCE);
                    self.kept.insert(number, file);
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

    fn writers_are_gone(&mut self, failed: &BTreeSet<LocalRank>, output: &mut Output) {
        for (number, kept) in std::mem::take(&mut self.kept) {
            self.watches.remove(number);
            let kept = kept.finish();
            if failed.contains(&kept.local_rank) {
                let source = Source::new(number, kept.shown, output);
                self.sources.insert(number, source);
            }
        }
        for source in self.sources.values_mut() {
            source.last_round = true;
            source.ready = true;
        }
    }

    /// Lets go of files that have been copied to their ends.
    fn let_go(&mut self, output: &mut Output) {
        let watches = &mut self.watches;
        self.sources.retain(|number, source| {
            let over = source.last_round && !source.ready;
            if over {
                source.finish(output);
                watches.remove(*number);
            }
            !over
        });
        if self.sources.is_empty() {
            output.write_folded(Instant::now());
        }
        if self.sources.is_empty() && output.is_empty() {
            for answer in self.waiting.drain(..) {
                let _ = answer.send(());
            }
        }
    }

    /// The source that has the console for itself.
    fn with_long_line(&mut self, now: Instant) -> Option<&mut Source> {
        self.sources
            .values_mut()
            .find(|source| source.has_console_until().is_some_and(|until| until > now))
    }

    fn trim(&mut self, now: Instant) {
        for (number, kept) in &mut self.kept {
            if kept.look_at().is_some_and(|at| at <= now) {
                // Watched first: what is written meanwhile is not missed.
                self.watches.add(*number, &kept.shown.path, ONCE);
                kept.trim();
            }
        }
    }

    /// Sleeps until a file has changed, the agent sends a command, or something is due.
    fn sleep(&mut self, output: &Output) {
        let partial = self.sources.values().filter_map(Source::give_out_at);
        let grown = self.kept.values().filter_map(KeptFile::look_at);
        let now = Instant::now();
        let long = self.sources.values().filter_map(Source::has_console_until);
        let due = partial
            .chain(grown)
            .chain(output.deadline())
            .chain(long.filter(|until| *until > now))
            .min();
        let mut timeout = due.map(|at| at.saturating_duration_since(now));
        if self.watches.are_incomplete() {
            timeout = Some(timeout.map_or(WITHOUT_WATCHES, |due| due.min(WITHOUT_WATCHES)));
        }
        let mut waited = vec![PollFd::new(&self.commands, PollFlags::IN)];
        if let Some(inotify) = &self.watches.inotify {
            waited.push(PollFd::new(inotify, PollFlags::IN));
        }
        let _ = poll(&mut waited, timeout);
        drop(waited);
        self.commands.drain();
        let now = Instant::now();
        for number in self.watches.changed() {
            if let Some(source) = self.sources.get_mut(&number) {
                source.ready = true;
            } else if let Some(kept) = self.kept.get_mut(&number) {
                kept.changed(now);
            }
        }
        if self.watches.are_incomplete() {
            for source in self.sources.values_mut() {
                source.ready = true;
            }
            for kept in self.kept.values_mut() {
                kept.changed(now);
            }
        }
    }
}

/// The watch on a file that is looked at after a while anyhow: it is silent after the first change
/// until it is set again, so that a flood does not wake the thread for every line.
const ONCE: inotify::WatchFlags = inotify::WatchFlags::MODIFY.union(inotify::WatchFlags::ONESHOT);

/// What the kernel watches for us.
struct Watches {
    inotify: Option<OwnedFd>,
    sources: BTreeMap<i32, u64>,
    refused: bool,
}

impl Watches {
    fn new() -> Self {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).ok();
        Self {
            refused: inotify.is_none(),
            inotify,
            sources: BTreeMap::new(),
        }
    }

    fn are_incomplete(&self) -> bool {
        self.refused
    }

    fn add(&mut self, number: u64, path: &Path, what: inotify::WatchFlags) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        // One that has done its duty is gone in the kernel.
        self.sources.retain(|_, source| *source != number);
        match inotify::add_watch(inotify, path, what) {
            Ok(watch) => {
                self.sources.insert(watch, number);
            }
            Err(_) => self.refused = true,
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        self.sources.retain(|watch, source| {
            let gone = *source == number;
            if gone {
                let _ = inotify::remove_watch(inotify, *watch);
            }
            !gone
        });
    }

    /// The sources whose files have changed since the last call.
    fn changed(&mut self) -> Vec<u64> {
        let Some(inotify) = &self.inotify else {
            return Vec::new();
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut changed = Vec::new();
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                    return self.sources.values().copied().collect();
                }
                Ok(event) => changed.extend(self.sources.get(&event.wd())),
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }
}
