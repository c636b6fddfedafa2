//! Waits of coroutines: one thread for all waits at servers.
//!
//! A wait at a server has a separate connection, and this thread polls the sockets of all of them.
//! Other stores have only blocking waits. Therefore each wait there has a thread, which exits after
//! the wait.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pyo3::prelude::*;
use rdzv_event::{Mailbox, Sender, mailbox, poll};
use rdzv_lock::Mutex;
use rdzv_store::{PendingWait, Store, StoreError, TcpStore, interruptible};
use rustix::event::{PollFd, PollFlags};

use super::borrowed;
use crate::errors::of_store;
use crate::handle::{Own, end_with_interpreter};
use crate::interrupt::attached;

/// Thread of this process.
static WAITER: Mutex<Option<Own<Waiter>>> = Mutex::new(None);

/// Handle of the thread, for starting waits.
struct Waiter {
    commands: Sender<Command>,
    next: AtomicU64,
    thread: JoinHandle<()>,
}

enum Command {
    Begin(u64, Request),
    Cancel(u64),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Value,
    Keys,
    Item,
}

pub(super) struct Request {
    pub(super) wanted: Wanted,
    pub(super) store: Arc<dyn Store>,
    /// Client below the store, with the keys that it uses.
    pub(super) below: Option<(Arc<TcpStore>, Vec<String>)>,
    pub(super) keys: Vec<String>,
    pub(super) timeout: Duration,
    /// Function that the waiting thread calls at the end of the wait.
    ///
    /// The arguments are the value and the exception. Each may be None. A cancelled wait at a
    /// server does not call it.
    pub(super) done: Py<PyAny>,
}

impl Request {
    /// Reads the result from `store`, where the keys are `keys`.
    ///
    /// Waits for up to `timeout`; `None` does not wait.
    fn take(&self, store: &dyn Store, keys: &[String], timeout: Option<Duration>) -> Outcome {
        let keys = borrowed(keys);
        let key = keys.first().copied().unwrap_or_default();
        let within = Some(timeout.unwrap_or_default());
        match self.wanted {
            Wanted::Value => store.get_within(key, within).map(Some),
            Wanted::Keys => store.wait(&keys, within).map(|()| None),
            Wanted::Item => store.queue_pop(key, timeout.is_some()).map(Some),
        }
    }
}

/// Begins a wait; the number is for [`cancel`].
pub(super) fn begin(request: Request) -> PyResult<u64> {
    let mut waiter = WAITER.lock();
    let waiter = match &mut *waiter {
        Some(waiter) if !waiter.is_foreign() => waiter,
        none => none.insert(Own::new(Waiter::start()?)),
    };
    let number = waiter.next.fetch_add(1, Ordering::Relaxed);
    waiter.commands.send(Command::Begin(number, request));
    Ok(number)
}

/// Ends a wait, if it is still in progress.
pub(super) fn cancel(number: u64) {
    if let Some(waiter) = &*WAITER.lock()
        && !waiter.is_foreign()
    {
        waiter.commands.send(Command::Cancel(number));
    }
}

impl Waiter {
    fn start() -> PyResult<Self> {
        let (commands, mailbox) = mailbox()?;
        let thread = thread::Builder::new()
            .name("rdzv-waits".to_owned())
            .spawn(move || run(&mailbox))?;
        end_with_interpreter(|| {
            let waiter = WAITER.lock().take();
            if let Some(waiter) = waiter.and_then(Own::into_inner) {
                waiter.commands.send(Command::End);
                // A panic of the thread was already reported.
                let _ = waiter.thread.join();
            }
        });
        Ok(Self {
            commands,
            next: AtomicU64::new(1),
            thread,
        })
    }
}

struct Going {
    number: u64,
    request: Request,
    started: Instant,
    pending: PendingWait,
}

struct Blocked {
    number: u64,
    is_cancelled: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

type Outcome = Result<Option<Bytes>, StoreError>;

fn run(mailbox: &Mailbox<Command>) {
    let mut all: Vec<Going> = Vec::new();
    let mut blocked: Vec<Blocked> = Vec::new();
    loop {
        if wait(mailbox, &all).is_err() {
            return;
        }
        mailbox.drain();
        while let Ok(command) = mailbox.try_recv() {
            blocked.retain(|blocked| !blocked.thread.is_finished());
            match command {
                Command::Begin(number, request) if request.below.is_some() => {
                    all.extend(Going::begin(number, request));
                }
                Command::Begin(number, request) => blocked.extend(Blocked::begin(number, request)),
                Command::Cancel(number) => {
                    all.retain(|going| going.number != number);
                    let blocked = blocked.iter().filter(|one| one.number == number);
                    blocked.for_each(Blocked::cancel);
                }
                Command::End => return end(blocked),
            }
        }
        all = all.into_iter().filter_map(Going::look).collect();
    }
}

fn end(blocked: Vec<Blocked>) {
    blocked.iter().for_each(Blocked::cancel);
    for one in blocked {
        // A panic of the thread was already reported.
        let _ = one.thread.join();
    }
}

/// Sleeps until a command arrives, or a wait may have ended.
fn wait(mailbox: &Mailbox<Command>, all: &[Going]) -> std::io::Result<()> {
    let ends = all.iter().filter_map(|going| going.pending.deadline());
    let timeout = ends
        .min()
        .map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let mut sources = vec![PollFd::new(mailbox, PollFlags::IN)];
    let pending = all.iter().map(|going| &going.pending);
    sources.extend(pending.map(|pending| PollFd::new(pending, PollFlags::IN)));
    poll(&mut sources, timeout).map(drop)
}

thread_local! {
    /// Flag of the wait of this thread.
    static IS_CANCELLED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

impl Blocked {
    /// Starts the thread; `None` after a failure.
    ///
    /// The owner has been notified of the failure, unless the interpreter has exited.
    fn begin(number: u64, request: Request) -> Option<Self> {
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_cancelled);
        let done = Python::try_attach(|py| request.done.clone_ref(py))?;
        let thread = thread::Builder::new()
            .name("rdzv-wait".to_owned())
            .spawn(move || {
                IS_CANCELLED.set(Some(flag));
                let timeout = Some(request.timeout);
                let take = || request.take(&*request.store, &request.keys, timeout);
                let outcome = interruptible(is_cancelled_here, take);
                tell(request.done, outcome);
            });
        match thread {
            Ok(thread) => Some(Self {
                number,
                is_cancelled,
                thread,
            }),
            Err(source) => {
                let error = StoreError::Service {
                    operation: "wait for the keys",
                    key: String::new(),
                    what: format!("cannot start a thread: {source}"),
                    endpoint: "this process".to_owned(),
                    elapsed: Duration::ZERO,
                    remedy: "raise the limit of threads, or use fewer waits at a time",
                };
                tell(done, Err(error));
                None
            }
        }
    }

    /// Cancels the wait; the thread reads the flag within 100 ms.
    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }
}

fn is_cancelled_here() -> bool {
    IS_CANCELLED.with_borrow(|flag| {
        flag.as_ref()
            .is_some_and(|flag| flag.load(Ordering::Acquire))
    })
}

impl Going {
    /// Sends the request to the server; `None` if the wait has ended.
    fn begin(number: u64, request: Request) -> Option<Self> {
        let (tcp, keys) = request.below.as_ref()?;
        let begun = tcp.begin_wait(&borrowed(keys), Some(request.timeout));
        Self::of(number, request, Instant::now(), begun)
    }

    fn of(
        number: u64,
        request: Request,
        started: Instant,
        begun: Result<PendingWait, StoreError>,
    ) -> Option<Self> {
        match begun {
            Ok(pending) => Some(Self {
                number,
                request,
                started,
                pending,
            }),
            Err(error) => tell_and_end(request.done, Err(error)),
        }
    }

    /// Checks the wait; if it has ended, notifies the owner and returns `None`.
    fn look(self) -> Option<Self> {
        let is_over = self
            .pending
            .deadline()
            .is_some_and(|deadline| deadline <= Instant::now());
        if !is_over && !rdzv_event::is_readable(&self.pending) {
            return Some(self);
        }
        let request = self.request;
        let connection = match self.pending.finish() {
            Ok(connection) => connection,
            Err(error) => return tell_and_end(request.done, Err(error)),
        };
        let (_, keys) = request.below.as_ref()?;
        match request.take(&connection, keys, None) {
            // Another client was faster: it has removed the key or the item.
            Err(StoreError::WaitTimeout { .. } | StoreError::QueueEmpty { .. }) => {}
            outcome => return tell_and_end(request.done, outcome),
        }
        let left = request.timeout.saturating_sub(self.started.elapsed());
        let begun = PendingWait::on(connection, &borrowed(keys), Some(left));
        Self::of(self.number, request, self.started, begun)
    }
}

/// Reports the result of a wait to its owner.
fn tell(done: Py<PyAny>, outcome: Outcome) {
    attached(|py| {
        let called = match outcome {
            Ok(value) => done.call1(py, (value, py.None())),
            Err(error) => done.call1(py, (py.None(), of_store(py, &error))),
        };
        if let Err(error) = called {
            error.write_unraisable(py, None);
        }
        drop(done);
    });
}

/// Calls [`tell`], as the end of a wait.
fn tell_and_end<T>(done: Py<PyAny>, outcome: Outcome) -> Option<T> {
    tell(done, outcome);
    None
}
