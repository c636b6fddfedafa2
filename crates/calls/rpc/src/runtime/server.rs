//! The answering side of a connection: who calls, and what each of its frames is for.
//!
//! | file | what |
//! |---|---|
//! | [`requests`] | a request from its frame to its turn |
//! | [`running`] | its function |
//! | [`replies`] | the answer |

mod replies;
mod requests;
mod running;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use bytes::Bytes;
use rdzv_lock::Mutex;
use rdzv_rpc_proto::calls::{Share, Window};
use rdzv_rpc_proto::frame::{Frame, FrameKind, Header, Limits};

use self::requests::Job;
use self::running::Blocking;
use crate::bulk::registered::Arenas;
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::Payload;
use crate::runtime::core::{Core, HangUp};
use crate::runtime::member::Caller;
use crate::service::cancellation::Cancellation;
use crate::wire::handshake::Greeting;
use crate::wire::link::{Endpoint, Link, fail};

/// Bytes of replies that a caller may leave unread, before none of its requests is begun until it
/// takes some: as much as it may have in flight.
const MOST_UNREAD: usize = 64 << 20;

impl HangUp for Server {
    fn hang_up(self: Arc<Self>, reason: &str) {
        if self.greeting.lock().is_none() {
            return;
        }
        self.say_goodbye(reason);
        fail(&self, RpcError::new(RpcErrorKind::Protocol, reason));
    }
}

/// The answering side of a connection.
pub(crate) struct Server {
    link: Link,
    arenas: Arenas,
    core: Weak<Core>,
    /// None for the connection of a worker with itself.
    greeting: Mutex<Option<Greeting>>,
    caller: OnceLock<Caller>,
    served: Mutex<Served>,
}

/// The requests that are not over.
#[derive(Default)]
struct Served {
    /// Requests that had to wait, since their parts are being read or others of their line come
    /// first, until they run.
    waiting: BTreeMap<u64, Waiting>,
    running: BTreeMap<u64, Runs>,
    /// Their share of what the caller may have open, beside those that are answered at once.
    window: Window,
    /// Parts of replies that the caller has not read yet.
    registered: BTreeMap<u64, Vec<Bytes>>,
    /// The bytes of these.
    bytes_registered: usize,
    /// Requests that stand in a line, behind the one that is worked on.
    lines: BTreeMap<u64, VecDeque<Job>>,
    /// Functions that take a thread and had their turn while the caller took no replies.
    held: Vec<Blocking>,
}

/// A request that has to wait.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    share: Share,
    line: Option<u64>,
    is_cancelled: bool,
}

/// A request whose function runs, or is about to have a thread.
struct Runs {
    share: Share,
    cancellation: Cancellation,
    /// Its argument, until the function has its thread: nobody else keeps it.
    argument: Option<Payload>,
}

impl Served {
    /// `true` if a call of this number is open.
    fn is_open(&self, call: u64) -> bool {
        self.waiting.contains_key(&call) || self.running.contains_key(&call)
    }

    /// A request has to wait, if it does not already.
    fn waits(&mut self, call: u64, share: Share, line: Option<u64>) {
        let waiting = Waiting {
            share,
            line,
            is_cancelled: false,
        };
        match self.waiting.entry(call) {
            Entry::Vacant(entry) => {
                entry.insert(waiting);
                self.window.take(share);
            }
            Entry::Occupied(mut entry) => entry.get_mut().line = line,
        }
    }

    /// A request waits no more. What it takes is free, if it does not run now.
    fn waited(&mut self, call: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&call)?;
        self.window.give_back(waiting.share);
        Some(waiting)
    }

    /// A function has ended.
    fn ended(&mut self, call: u64) {
        if let Some(runs) = self.running.remove(&call) {
            self.window.give_back(runs.share);
        }
    }

    /// The caller has read the parts of a reply.
    fn read(&mut self, call: u64) {
        if let Some(parts) = self.registered.remove(&call) {
            self.bytes_registered -= parts.iter().map(Bytes::len).sum::<usize>();
        }
    }
}

impl Server {
    pub(crate) fn new(link: Link, core: &Arc<Core>, greeting: Greeting) -> Self {
        Self {
            greeting: Mutex::new(Some(greeting)),
            ..Self::loopback(link, core, OnceLock::new())
        }
    }

    /// The connection of a worker with itself, whose caller is known.
    pub(crate) fn loopback(link: Link, core: &Arc<Core>, caller: OnceLock<Caller>) -> Self {
        Self {
            arenas: Arenas::new(&link),
            link,
            core: Arc::downgrade(core),
            greeting: Mutex::new(None),
            caller,
            served: Mutex::default(),
        }
    }

    /// `true` if the connection is over.
    pub(crate) fn is_over(&self) -> bool {
        self.link.ended().is_some()
    }

    /// When it has to have said who it is.
    pub(crate) fn greeted_until(&self) -> Option<Instant> {
        if self.caller.get().is_some() {
            return None;
        }
        self.greeting.lock().as_ref().map(Greeting::until)
    }

    /// Goes on with the greeting.
    fn greet(self: &Arc<Self>, frame: &Frame) -> Result<(), RpcError> {
        let said = match self.greeting.lock().as_mut() {
            Some(greeting) => greeting.take(frame)?,
            None => return Ok(()),
        };
        for (kind, body) in said.answers {
            self.link.send(&Header::new(kind), &body, Vec::new())?;
        }
        if let (Some(peer), Some(core)) = (said.peer, self.core.upgrade()) {
            // It is set once: the handshake ends with it.
            let _ = self.caller.set(core.accepted(peer, self.link.process));
        }
        Ok(())
    }

    /// Tells the caller that this worker goes, and why.
    pub(crate) fn say_goodbye(&self, reason: &str) {
        self.link
            .send_last(&Header::new(FrameKind::GoAway), reason.as_bytes());
    }
}

impl Endpoint for Server {
    fn link(&self) -> &Link {
        &self.link
    }

    fn take(self: Arc<Self>, frame: Frame) -> Option<Limits> {
        let Some(caller) = self.caller.get() else {
            if let Err(error) = self.greet(&frame) {
                let introduction = self
                    .greeting
                    .lock()
                    .as_ref()
                    .and_then(Greeting::introduction);
                if let (FrameKind::Hello, Some(hello)) = (frame.header.kind, introduction) {
                    self.link.send_last(&Header::new(FrameKind::Hello), &hello);
                }
                self.say_goodbye(&error.message);
                fail(&self, error);
            }
            let core = self.core.upgrade();
            let core = core.filter(|_| self.caller.get().is_some())?;
            return Some(core.limits);
        };
        let kind = frame.header.kind;
        let taken = match kind {
            FrameKind::Request => self.request(caller, frame),
            FrameKind::Cancel => {
                self.cancel(frame.header.call);
                Ok(())
            }
            FrameKind::Release if !frame.body.is_empty() => self.arenas.returned(&frame.body),
            FrameKind::Release => {
                self.served.lock().read(frame.header.call);
                Ok(())
            }
            FrameKind::References => {
                if let Some(core) = self.core.upgrade() {
                    let holder = caller.holder();
                    core.references.received(&core, holder, &frame.body);
                }
                Ok(())
            }
            FrameKind::Ping => {
                let pong = caller.lending.answer_ping(&frame.body);
                self.link
                    .send(&Header::new(FrameKind::Pong), &pong, Vec::new())
            }
            // An orderly end is about to come.
            FrameKind::GoAway => Ok(()),
            _ => {
                let text = format!("it sent a {kind:?} where requests come only");
                Err(RpcError::new(RpcErrorKind::Protocol, text))
            }
        };
        if let Err(error) = taken {
            self.say_goodbye(&error.message);
            fail(&self, error);
        }
        None
    }

    fn may_take(&self) -> bool {
        self.link.unsent() <= MOST_UNREAD
    }

    fn goes_on(self: Arc<Self>) {
        let held = std::mem::take(&mut self.served.lock().held);
        self.go_on_with(held);
    }

    fn give_back(&self) -> Result<(), RpcError> {
        self.arenas.give_back(&self.link)
    }

    fn lost(self: Arc<Self>, error: RpcError) {
        self.arenas.end();
        let served = std::mem::take(&mut *self.served.lock());
        for runs in served.running.values() {
            runs.cancellation.cancel();
        }
        // They see that nobody waits for them any more.
        self.go_on_with(served.held);
        if let Some(core) = self.core.upgrade() {
            core.caller_lost(self.caller.get(), &error);
        }
    }
}
