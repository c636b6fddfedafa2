//! The answering side of a connection: its caller, its requests and its frames.
//!
//! | file | what |
//! |---|---|
//! | [`requests`] | a request from its frame to its turn |
//! | [`running`] | the function of the request |
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
use rdzv_rpc_proto::frame::{Frame, FrameKind, FrameLimits, Header};

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

/// Bytes of unread replies above which no request of the caller is read.
/// This equals the number of bytes that the caller may have in flight.
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
    /// `None` for the connection of a worker to itself.
    greeting: Mutex<Option<Greeting>>,
    caller: OnceLock<Caller>,
    served: Mutex<Served>,
}

/// Requests of a connection that are not answered yet.
#[derive(Default)]
struct Served {
    /// Requests that wait for their parts or behind others in their line.
    /// A request stays here until it is answered or in `running`.
    waiting: BTreeMap<u64, Waiting>,
    running: BTreeMap<u64, Runs>,
    /// Limit for the requests of the caller that are not answered immediately.
    window: Window,
    /// Parts of replies that the caller has not read yet.
    registered: BTreeMap<u64, Vec<Bytes>>,
    bytes_registered: usize,
    /// Queued requests of each line, without the one that is being served.
    lines: BTreeMap<u64, VecDeque<Job>>,
    /// Blocking functions that became due while the caller read no replies.
    held: Vec<Blocking>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    share: Share,
    line: Option<u64>,
    is_cancelled: bool,
}

/// A request whose function runs, or waits for a thread.
struct Runs {
    share: Share,
    cancellation: Cancellation,
    /// Argument of a blocking function, kept only here until it has its thread.
    argument: Option<Payload>,
}

impl Served {
    fn is_open(&self, call: u64) -> bool {
        self.waiting.contains_key(&call) || self.running.contains_key(&call)
    }

    /// Registers a request that must wait; if it already waits, sets its line.
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

    /// Removes a request that no longer waits, and frees its share of the window.
    fn waited(&mut self, call: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&call)?;
        self.window.give_back(waiting.share);
        Some(waiting)
    }

    /// Frees the share of a function that has ended.
    fn ended(&mut self, call: u64) {
        if let Some(runs) = self.running.remove(&call) {
            self.window.give_back(runs.share);
        }
    }

    /// Drops the parts of a reply that the caller has read.
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

    /// Creates the answering side of a worker's connection to itself.
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

    pub(crate) fn is_over(&self) -> bool {
        self.link.ended().is_some()
    }

    /// Returns the peer's deadline to identify itself; `None` once it has done so.
    pub(crate) fn greeting_deadline(&self) -> Option<Instant> {
        if self.caller.get().is_some() {
            return None;
        }
        self.greeting.lock().as_ref().map(Greeting::deadline)
    }

    fn greet(self: &Arc<Self>, frame: &Frame) -> Result<(), RpcError> {
        let said = match self.greeting.lock().as_mut() {
            Some(greeting) => greeting.take(frame)?,
            None => return Ok(()),
        };
        for (kind, body) in said.answers {
            self.link.send(&Header::new(kind), &body, Vec::new())?;
        }
        if let (Some(peer), Some(core)) = (said.peer, self.core.upgrade()) {
            // The handshake sets the caller once, at its end.
            let _ = self.caller.set(core.accepted(peer, self.link.process));
        }
        Ok(())
    }

    /// Notifies the caller that this worker closes the connection, with the reason.
    pub(crate) fn say_goodbye(&self, reason: &str) {
        self.link
            .send_last(&Header::new(FrameKind::GoAway), reason.as_bytes());
    }
}

impl Endpoint for Server {
    fn link(&self) -> &Link {
        &self.link
    }

    fn take(self: Arc<Self>, frame: Frame) -> Option<FrameLimits> {
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
            // The caller is about to close the connection cleanly.
            FrameKind::GoAway => Ok(()),
            _ => {
                let text = format!("it sent a {kind:?} frame instead of a request");
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
        // The held functions find out that their result is no longer needed.
        self.go_on_with(served.held);
        if let Some(core) = self.core.upgrade() {
            core.caller_lost(self.caller.get(), &error);
        }
    }
}
