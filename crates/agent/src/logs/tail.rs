//! The thread that copies workers' output from their files to the console.
//!
//! It sleeps until the kernel says that a file has changed (inotify) or the agent has something to
//! say (an eventfd). It holds the files of all workers; a worker's files are let go when they have
//! been copied to their end after the last writer has gone.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::console::Console;
pub(super) use super::console::Target;
use super::source::Source;
pub(super) use super::source::TailedFile;

/// How much is read, and so written, at once.
const BUFFER: usize = 256 << 10;

/// How often files are looked at where the kernel refuses to watch them: the number of watches is
/// limited per user.
const WITHOUT_WATCHES: Duration = Duration::from_millis(100);

/// What the agent says to the thread.
enum Order {
    Add(TailedFile),
    WritersAreGone,
    /// Answer when all files have been let go.
    Drain(oneshot::Sender<()>),
}

/// The agent's end of the thread. The thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct Tail {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
}

impl Tail {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, received) = channel();
        let copier = Copier {
            orders: received,
            bell: Arc::clone(&bell),
            watches: Watches::new(),
            sources: BTreeMap::new(),
            next: 0,
            waiting: Vec::new(),
            closed: false,
        };
        thread::Builder::new()
            .name("tail".to_owned())
            .stack_size(256 << 10)
            .spawn(move || copier.run())?;
        Ok(Self { orders, bell })
    }

    /// Copies a file from its beginning on.
    pub(super) fn add(&self, file: TailedFile) {
        self.order(Order::Add(file));
    }

    /// Nobody writes any more into any of the files that were added so far.
    pub(super) fn writers_are_gone(&self) {
        self.order(Order::WritersAreGone);
    }

    /// Waits until all files have been copied to their ends, which needs that their writers are
    /// gone.
    pub(super) async fn drained(&self) {
        let (answer, drained) = oneshot::channel();
        self.order(Order::Drain(answer));
        let _ = drained.await;
    }

    fn order(&self, order: Order) {
        // The thread ends only after this end is gone.
        let _ = self.orders.send(order);
        ring(&self.bell);
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let (orders, _) = channel();
        self.orders = orders;
        ring(&self.bell);
    }
}

fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// The thread's own state.
struct Copier {
    orders: Receiver<Order>,
    bell: Arc<OwnedFd>,
    watches: Watches,
    sources: BTreeMap<u64, Source>,
    next: u64,
    waiting: Vec<oneshot::Sender<()>>,
    closed: bool,
}

impl Copier {
    fn run(mut self) {
        let mut console = Console::new();
        let mut buffer = vec![0; BUFFER];
        let mut out = Vec::new();
        loop {
            self.take_orders();
            if self.closed {
                return;
            }
            let mut copied = false;
            for source in self.sources.values_mut().filter(|source| source.ready) {
                copied |= source.copy(&mut buffer, &mut out, &mut console);
            }
            self.let_go(&mut out, &mut console);
            if !copied {
                self.sleep();
            }
            let now = Instant::now();
            for source in self.sources.values_mut() {
                source.give_out_if_due(now, &mut out, &mut console);
            }
        }
    }

    fn take_orders(&mut self) {
        loop {
            match self.orders.try_recv() {
                Ok(Order::Add(file)) => {
                    self.watches.add(self.next, &file.path);
                    self.sources.insert(self.next, Source::new(self.next, file));
                    self.next += 1;
                }
                Ok(Order::WritersAreGone) => {
                    for source in self.sources.values_mut() {
                        source.last_round = true;
                        source.ready = true;
                    }
                }
                Ok(Order::Drain(answer)) => self.waiting.push(answer),
                Err(std::sync::mpsc::TryRecvError::Empty) => return,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    /// Lets go of files that have been copied to their ends.
    fn let_go(&mut self, out: &mut Vec<u8>, console: &mut Console) {
        let watches = &mut self.watches;
        self.sources.retain(|number, source| {
            let over = source.last_round && !source.ready;
            if over {
                source.finish(out, console);
                watches.remove(*number);
            }
            !over
        });
        if self.sources.is_empty() {
            for answer in self.waiting.drain(..) {
                let _ = answer.send(());
            }
        }
    }

    /// Sleeps until a file has changed, the agent rings, or a held back line is due.
    fn sleep(&mut self) {
        let due = self.sources.values().filter_map(Source::give_out_at).min();
        let mut patience = due.map(|at| at.saturating_duration_since(Instant::now()));
        if self.watches.are_incomplete() {
            patience = Some(patience.map_or(WITHOUT_WATCHES, |due| due.min(WITHOUT_WATCHES)));
        }
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let mut waited = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        if let Some(inotify) = &self.watches.inotify {
            waited.push(PollFd::new(inotify, PollFlags::IN));
        }
        let _ = poll(&mut waited, timeout.as_ref());
        drop(waited);
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        for number in self.watches.changed() {
            if let Some(source) = self.sources.get_mut(&number) {
                source.ready = true;
            }
        }
        if self.watches.are_incomplete() {
            for source in self.sources.values_mut() {
                source.ready = true;
            }
        }
    }
}

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

    fn add(&mut self, number: u64, path: &Path) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        match inotify::add_watch(inotify, path, inotify::WatchFlags::MODIFY) {
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
