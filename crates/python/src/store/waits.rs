//! Waits of coroutines: one thread for all of them, whichever store they are for.
//!
//! A wait at a server has a connection of its own, whose socket this thread polls beside the others. Other
//! stores tell nobody of their changes, so they are looked at every [`INTERVAL`] while somebody waits in them.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rdzv_event::{Mailbox, Sender, mailbox, poll};
use rdzv_store::{PendingWait, Store, StoreError, TcpStore};
use rustix::event::{PollFd, PollFlags};

use crate::errors::of_store;
use crate::handle::{Origin, end_with_interpreter};

/// Time between two looks at a store that tells nobody of its changes.
const INTERVAL: Duration = Duration::from_millis(10);

/// The thread of this process.
static WAITER: Mutex<Option<ManuallyDrop<Waiter>>> = Mutex::new(None);

/// The thread, as those who start waits see it.
struct Waiter {
    origin: Origin,
    commands: Sender<Command>,
    next: u64,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    Begin(u64, Request),
    Cancel(u64),
    End,
}

/// The thing that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Value,
    Keys,
    Item,
}

/// A wait that somebody asks for.
pub(super) struct Request {
    pub(super) wanted: Wanted,
    pub(super) store: Arc<dyn Store>,
    /// The client below the store, and the keys as that one knows them.
    pub(super) below: Option<(Arc<TcpStore>, Vec<String>)>,
    pub(super) keys: Vec<String>,
    pub(super) timeout: Duration,
    /// Called once, with the value (or None) and the exception (or None), on the waiting thread.
    pub(super) done: Py<PyAny>,
}

/// Begins a wait; the number is for [`cancel`].
pub(super) fn begin(request: Request) -> PyResult<u64> {
    let mut waiter = WAITER.lock();
    if waiter
        .as_ref()
        .is_none_or(|waiter| waiter.origin.is_foreign())
    {
        *waiter = Some(ManuallyDrop::new(Waiter::start()?));
    }
    let Some(waiter) = &mut *waiter else {
        return Err(PyRuntimeError::new_err("there is no thread for waits"));
    };
    waiter.next += 1;
    waiter.commands.send(Command::Begin(waiter.next, request));
    Ok(waiter.next)
}

/// Ends a wait, if it goes on.
pub(super) fn cancel(number: u64) {
    if let Some(waiter) = &*WAITER.lock()
        && !waiter.origin.is_foreign()
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
            if let Some(mut waiter) = waiter.map(ManuallyDrop::into_inner) {
                waiter.commands.send(Command::End);
                // A panic of it was shown already.
                let _ = waiter.thread.take().map(JoinHandle::join);
            }
        });
        Ok(Self {
            origin: Origin::here(),
            commands,
            next: 0,
            thread: Some(thread),
        })
    }
}

/// A wait that goes on.
struct Going {
    number: u64,
    request: Request,
    started: Instant,
    /// At a server.
    pending: Option<PendingWait>,
}

/// The result of a wait.
type Outcome = Result<Option<bytes::Bytes>, StoreError>;

fn run(mailbox: &Mailbox<Command>) {
    let mut all: Vec<Going> = Vec::new();
    loop {
        if wait(mailbox, &all).is_err() {
            return;
        }
        mailbox.drain();
        while let Ok(command) = mailbox.try_recv() {
            match command {
                Command::Begin(number, request) => {
                    let going = Going {
                        number,
                        request,
                        started: Instant::now(),
                        pending: None,
                    };
                    all.extend(going.begin());
                }
                Command::Cancel(number) => all.retain(|going| going.number != number),
                Command::End => return,
            }
        }
        all = all.into_iter().filter_map(Going::look).collect();
    }
}

/// Sleeps until a command has come, or something may have happened to a wait.
fn wait(mailbox: &Mailbox<Command>, all: &[Going]) -> std::io::Result<()> {
    let ends = all.iter().map(|going| match &going.pending {
        Some(pending) => pending
            .until()
            .map(|until| until.saturating_duration_since(Instant::now())),
        None => Some(INTERVAL),
    });
    let timeout = ends.flatten().min();
    let mut sources = vec![PollFd::new(mailbox, PollFlags::IN)];
    let pending = all.iter().filter_map(|going| going.pending.as_ref());
    sources.extend(pending.map(|pending| PollFd::new(pending, PollFlags::IN)));
    poll(&mut sources, timeout).map(drop)
}

impl Going {
    /// Asks the server, if there is one. `None`: it is over.
    fn begin(mut self) -> Option<Self> {
        let Some((tcp, keys)) = &self.request.below else {
            return Some(self);
        };
        let begun = tcp.begin_wait(&borrowed(keys), Some(self.left()));
        match begun {
            Ok(pending) => {
                self.pending = Some(pending);
                Some(self)
            }
            Err(error) => self.tell(Err(error)),
        }
    }

    /// Sees whether it is over, and tells its owner. `None`: it is.
    fn look(mut self) -> Option<Self> {
        match self.pending.take() {
            None => {
                let request = &self.request;
                match attempt(&*request.store, request.wanted, &request.keys) {
                    Some(outcome) => self.tell(outcome),
                    None if self.left().is_zero() => {
                        let missing = self.request.keys.clone();
                        let error = StoreError::WaitTimeout {
                            store: format!("{:?}", self.request.store),
                            keys: missing.clone(),
                            missing,
                            elapsed: self.started.elapsed(),
                        };
                        self.tell(Err(error))
                    }
                    None => Some(self),
                }
            }
            Some(pending) => {
                let is_over = pending.until().is_some_and(|until| until <= Instant::now());
                if !is_over && !rdzv_event::is_readable(&pending) {
                    self.pending = Some(pending);
                    return Some(self);
                }
                self.conclude(pending)
            }
        }
    }

    /// The server has answered, or the time is over.
    fn conclude(mut self, pending: PendingWait) -> Option<Self> {
        let connection = match pending.finish() {
            Ok(connection) => connection,
            Err(error) => return self.tell(Err(error)),
        };
        let keys = match &self.request.below {
            Some((_, keys)) => keys.clone(),
            None => self.request.keys.clone(),
        };
        if let Some(outcome) = attempt(&connection, self.request.wanted, &keys) {
            return self.tell(outcome);
        }
        // Somebody was faster: the key is gone again, or the item.
        match PendingWait::on(connection, &borrowed(&keys), Some(self.left())) {
            Ok(pending) => {
                self.pending = Some(pending);
                Some(self)
            }
            Err(error) => self.tell(Err(error)),
        }
    }

    fn left(&self) -> Duration {
        self.request.timeout.saturating_sub(self.started.elapsed())
    }

    /// Tells the owner how it ended.
    fn tell(self, outcome: Outcome) -> Option<Self> {
        let done = self.request.done;
        Python::try_attach(|py| {
            let told = match outcome {
                Ok(value) => {
                    let value = value.map(|value| PyBytes::new(py, &value));
                    done.call1(py, (value, py.None()))
                }
                Err(error) => done.call1(py, (py.None(), of_store(py, &error))),
            };
            if let Err(error) = told {
                error.write_unraisable(py, None);
            }
            drop(done);
        });
        None
    }
}

/// Takes what is wanted, if it is there. Does not wait.
fn attempt(store: &dyn Store, wanted: Wanted, keys: &[String]) -> Option<Outcome> {
    let keys = borrowed(keys);
    let key = keys.first().copied().unwrap_or_default();
    if wanted == Wanted::Item {
        return match store.queue_pop(key, false) {
            Err(StoreError::QueueEmpty { .. }) => None,
            popped => Some(popped.map(Some)),
        };
    }
    match store.check(&keys) {
        Ok(true) => {}
        Ok(false) => return None,
        Err(error) => return Some(Err(error)),
    }
    if wanted == Wanted::Keys {
        return Some(Ok(None));
    }
    match store.get_within(key, Some(Duration::ZERO)) {
        Err(StoreError::WaitTimeout { .. }) => None,
        got => Some(got.map(Some)),
    }
}

fn borrowed(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}
